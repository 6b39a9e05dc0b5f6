"""Layer-input swap from Python against its limits, on a simulated device and in its time.

Eight recomputed layers of 10 ms on a link where one input's copy takes 20, 150 or 250 % of a layer,
the host running free: through recompute, and through SwapLayerInputs over torch's reentrant and
non-reentrant recompute function. Then the host's time for a layer beside torch's. Exits with 1
where a bound is broken or a race is found.

    PYTHONPATH=build/release/python python bench/python/layer_input_bench.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import swapline.sim
from swapline import SwapContext
from swapline.layer_input import LayerInputs, SwapLayerInputs

NUM_LAYERS = 8
ROWS = 512
WIDTH = 256
LAYER_MS = 10.0
INPUT_BYTES = ROWS * WIDTH * 4
COPY_LATENCY_MS = 0.01
SHARES = (0.2, 1.5, 2.5)  # of a layer that a copy takes
MIB = 1 << 20

WAYS = ("recompute", "reentrant", "non-reentrant")
MOST_MS = {0.2: 322.8, 1.5: 322.8, 2.5: 386.0}
MOST_PEAK_MIB = 13.0
MOST_HOST_MICROSECONDS = 100.0


class Layer(nn.Module):
    """[ROWS, WIDTH] to the same: y = h + o(q(x) sigmoid(k(x)) v(x)); y + d(gelu(u(norm(y))))."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.u = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.d = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(h, (WIDTH,))
        y = h + self.o(self.q(x) * self.k(x).sigmoid() * self.v(x))
        return y + self.d(F.gelu(self.u(F.layer_norm(y, (WIDTH,)))))


class Model(nn.Module):
    def __init__(self, layer_class: type[nn.Module] = Layer, num_layers: int = NUM_LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer_class() for _ in range(num_layers))
        self.run: Callable = checkpoint  # a layer of an input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 1
        for layer in self.layers:
            h = self.run(layer, h)
        return h


def way_of(name: str, model: Model, *, swaps: bool = True, **options):
    """How a model's layers run: recompute, or torch's function inside SwapLayerInputs. A context
    manager of the thing that has the statistics; without `swaps` the same work on the device."""
    context = None
    if swaps:
        context = SwapContext(
            torch.device("sim:0"), slab_bytes=8 << 20, like=swapline.sim.context_options()
        )
    if name == "recompute":
        inputs = LayerInputs(context, enabled=swaps, num_layers=len(model.layers), **options)
        model.run = inputs.recompute
        return contextlib.nullcontext(inputs)
    is_reentrant = name == "reentrant"

    def run(layer, h):
        return checkpoint(layer, h, use_reentrant=is_reentrant, preserve_rng_state=False)

    model.run = run
    if not swaps:
        return contextlib.nullcontext()
    return SwapLayerInputs(model, context=context, **options)


@dataclasses.dataclass
class Measured:
    step_ms: float
    peak_mib: float  # allocated, beyond parameters and gradients
    physical_mib: float  # reserved and held back, beyond the same
    races: int
    stats: dict[str, int | float]  # of all steps


def configure(flops: float, share: float, **settings) -> None:
    link = INPUT_BYTES / ((share * LAYER_MS - COPY_LATENCY_MS) / 1e3)
    swapline.sim.configure(
        "trial", float32_flops=flops, h2d_bytes_per_s=link, d2h_bytes_per_s=link, **settings
    )


def calibrated_flops() -> float:
    """The rate at which one layer's forward takes LAYER_MS."""

    def forward_ms(layer: Layer, h: torch.Tensor, times: int) -> float:
        before = swapline.sim.time_ms()
        for _ in range(times):
            layer(h)
        return swapline.sim.time_ms() - before

    flops = 1e11
    for _ in range(6):
        configure(flops, 1.0, dry_run=True)
        layer, h = Layer().to("sim"), torch.randn(ROWS, WIDTH, device="sim")
        with torch.no_grad():
            flops *= (forward_ms(layer, h, 9) - forward_ms(layer, h, 1)) / 8 / LAYER_MS
        del layer, h
    return flops


def measure(
    flops: float,
    share: float,
    way: str,
    *,
    swaps: bool = True,
    num_steps: int = 4,
    num_learning: int = 8,
    max_swapping_out: int | str = "auto",
    **settings,
) -> Measured:
    """Steps that follow each other without a sync, after those in which the lag is learned. With
    dry_run=True nothing is computed; time and memory are the same."""
    configure(flops, share, **settings)
    model = Model().to("sim")
    x = torch.randn(ROWS, WIDTH, device="sim").requires_grad_()
    # Before the first step: the allocator would scatter them among activations.
    for each in (x, *model.parameters()):
        each.grad = torch.zeros_like(each)
    with way_of(way, model, swaps=swaps, max_swapping_out=max_swapping_out) as swapped:
        for _ in range(num_learning):
            model(x).sum().backward()
        before = swapline.sim.time_ms()
        held = swapline.sim.memory()["allocated_bytes"]
        swapline.sim.reset_peak_memory()
        for _ in range(num_steps):
            model(x).sum().backward()
        step_ms = (swapline.sim.time_ms() - before) / num_steps
        stats = swapped.stats() if swaps else {}
    memory = swapline.sim.memory()
    return Measured(
        step_ms,
        (memory["peak_allocated_bytes"] - held) / MIB,
        (memory["peak_reserved_bytes"] + memory["held_bytes"] - held) / MIB,
        swapline.sim.num_races(),
        stats,
    )


class Tiny(nn.Module):
    """Next to no work: what is left is recompute, autograd and the device itself."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * 2


def host_microseconds(way: str, *, swaps: bool, num_steps: int = 20) -> float:
    """The processor's time for a layer, forward and backward, in a dry run: what others take of the
    machine is not in it."""
    swapline.sim.configure("tiny", dry_run=True, check_races=False, capacity="1GiB")
    model = Model(Tiny)
    x = torch.ones(ROWS, WIDTH, device="sim").requires_grad_()
    with way_of(way, model, swaps=swaps):
        for _ in range(3):
            model(x).sum().backward()
        start = time.process_time()
        for _ in range(num_steps):
            model(x).sum().backward()
        return (time.process_time() - start) * 1e6 / (num_steps * NUM_LAYERS)


def host_times(num_rounds: int = 8) -> dict[str, float]:
    """The best of several rounds each."""
    best: dict[str, float] = {}
    for _ in range(num_rounds):
        for way in WAYS:
            for swaps in (False, True):
                key = f"{way}, {'swap' if swaps else 'no swap'}"
                best[key] = min(best.get(key, 1e9), host_microseconds(way, swaps=swaps))
    return best


def broken_bounds(share: float, got: Measured) -> list[str]:
    """Figures are given to 0.1, so half of that is let pass."""
    bounds = {
        f"{got.step_ms:.2f} ms a step, at most {MOST_MS[share]}": got.step_ms - MOST_MS[share],
        f"{got.peak_mib:.2f} MiB allocated, at most {MOST_PEAK_MIB}": got.peak_mib - MOST_PEAK_MIB,
        f"{got.races} races": got.races,
    }
    return [name for name, excess in bounds.items() if excess > 0.05]


def main() -> int:
    failures = []
    flops = calibrated_flops()
    print(f"{'':34} {'step ms':>9} {'peak MiB':>9} {'physical':>9} {'races':>6}")

    def print_row(name: str, got: Measured) -> None:
        print(
            f"{name:34} {got.step_ms:9.2f} {got.peak_mib:9.2f} {got.physical_mib:9.2f} "
            f"{got.races:6d}"
        )

    for way in WAYS:
        print_row(f"{way}, no swap", measure(flops, 1.0, way, swaps=False, dry_run=True))
        for share in SHARES:
            # Once with numbers, and copies as late as their order allows.
            for settings in ({"dry_run": True}, {"late_copies": True}):
                if "late_copies" in settings and share != 1.5:
                    continue
                got = measure(flops, share, way, **settings)
                name = f"{way}, copy {share:.0%}{', late' if 'late_copies' in settings else ''}"
                print_row(name, got)
                failures += [f"{name}: {broken}" for broken in broken_bounds(share, got)]
    times = host_times()
    for name, microseconds in times.items():
        print(f"host time a layer, forward and backward: {name:24} {microseconds:7.1f} us")
    for way in WAYS:
        torchs = times["reentrant, no swap" if way == "recompute" else f"{way}, no swap"]
        more = times[f"{way}, swap"] - torchs
        print(f"{way}: {more:.1f} us more than torch's")
        if more > MOST_HOST_MICROSECONDS:
            failures.append(f"{way}: {more:.1f} us of host time a layer")
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
