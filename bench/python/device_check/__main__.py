"""What swap costs and saves on a device, in one table: copies, steps, memory, bits, host time.

    python bench/python/device_check --device cuda|npu|sim [--json FILE]

docs/benchmarks.md says what each row means. Returns 1 where a promise is broken or a part failed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator

# Read when the CUDA libraries are initialised: without it their products may differ between runs.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from accelerator import KINDS, Accelerator
from stack import SHAPES, default_shape
from table import Row, lines_of, write_json

PARTS = ("copies", "kernels", "host", "steps")


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="device_check", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=KINDS, required=True)
    parser.add_argument("--shape", choices=SHAPES, help="by default by the device's memory")
    parser.add_argument("--layers", type=int, default=0, help="by default as many as fit")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step")
    parser.add_argument("--warm-steps", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="that are timed")
    parser.add_argument("--max-swapping-out", type=int, default=1, help="0: auto")
    parser.add_argument("--times", type=int, default=16, help="swap_optimizer_times")
    parser.add_argument("--kernel-elements", type=int, default=(1 << 20) + 37)
    parser.add_argument("--host-times", type=int, default=10, help="measurements of host time")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", type=pathlib.Path, help="the rows as a file, too")
    options = parser.parse_args(arguments)
    if options.micro_batches < 2:
        # In the only one gradients come as inputs go: the peak is then at its end, without inputs.
        parser.error("--micro-batches must be at least 2, so that gradients and inputs meet")
    return options


def parts_of(accelerator: Accelerator, options: argparse.Namespace) -> dict[str, Callable]:
    # They load swapline, which the choice of a device comes before.
    import copies
    import host_times
    import kernels
    import steps

    shape = SHAPES[options.shape]
    plan = steps.Plan(
        shape,
        options.layers,
        options.micro_batches,
        options.warm_steps,
        options.steps,
        options.max_swapping_out or "auto",
        options.times,
    )
    return {
        "copies": lambda: copies.rows(accelerator, shape),
        "kernels": lambda: kernels.rows(accelerator, options.kernel_elements),
        "host": lambda: host_times.rows(accelerator, shape, options.host_times),
        "steps": lambda: steps.rows(accelerator, plan),
    }


def measured(name: str, part: Callable[[], Iterator[Row]], into: list[Row]) -> None:
    """What fails is a row; what was measured before it stays, and the other parts are measured."""
    print(name, file=sys.stderr, flush=True)
    try:
        for row in part():
            into.append(row)  # noqa: PERF402 - one by one: a part may end in the middle
    except Exception as error:  # noqa: BLE001 - whatever it is
        traceback.print_exc()
        reason = (str(error).splitlines() or [""])[0][:80]
        into.append(Row(name, f"{type(error).__name__}: {reason}", verdict="-", is_met=False))


def heading(accelerator: Accelerator, options: argparse.Namespace) -> list[str]:
    device = f"{accelerator.kind}: {accelerator}; torch {torch.__version__}"
    steps = f"{options.micro_batches} micro-batches a step, median of {options.steps} warm steps"
    lines = [f"{device}; shape {options.shape}, {steps}"]
    if accelerator.is_fake:
        lines.append("fake runtime: times mean nothing")
    elif not accelerator.is_real:
        lines.append("simulated device: its times are those of its cost model, but for host time")
    return lines


def in_order(rows: list[Row]) -> list[Row]:
    """Rows of a part stand together."""
    parts = list(dict.fromkeys(row.part for row in rows))
    return sorted(rows, key=lambda row: parts.index(row.part))


def main() -> int:
    options = options_of()
    accelerator = Accelerator(options.device)
    options.shape = options.shape or default_shape(accelerator)
    torch.set_num_threads(1)
    # Attention's backward otherwise adds in any order. Filling what is allocated would take time.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    rows: list[Row] = []
    start = time.monotonic()
    try:
        parts = parts_of(accelerator, options)
        for name in options.parts:
            measured(name, parts[name], rows)
            accelerator.clean()
    finally:  # also of a run that is interrupted because it takes too long
        rows = in_order(rows)
        head = heading(accelerator, options)
        print("\n".join([*head, "", *lines_of(rows)]))
        print(f"\n{time.monotonic() - start:.0f} s")
        if options.json:
            write_json(rows, head, options.json)
    return 1 if any(row.is_met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
