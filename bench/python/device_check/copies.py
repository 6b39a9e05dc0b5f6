"""Rates of swapline's copies between host and device, beside the vendor's own copy function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import swapline
from accelerator import Accelerator, RawCopies
from stack import Shape, make_stack
from swapline.layer_input import SwapTensors
from swapline.optim import AdamW
from table import Row

TIMES = 5
WAYS = {"in": "host to device", "out": "device to host"}


def rows(accelerator: Accelerator, shape: Shape) -> Iterator[Row]:
    raw_copies = RawCopies(accelerator)
    raw = _raw_rates(accelerator, shape, raw_copies)
    ours = _swap_rates(accelerator, shape)
    for key, name in (
        *WAYS.items(),
        ("both", "both directions together, each"),
    ):
        yield Row("copies", f"{name}: SwapTensors", ours[key], raw[key], "GB/s", raw_copies.name)
    for way, rate in _optimizer_rates(accelerator, shape).items():
        name = f"{WAYS[way]}: in AdamW.step(), both at once"
        yield Row("copies", name, rate, raw["both"], "GB/s", raw_copies.name)


def _rate(num_bytes: int, ms: float) -> float | None:
    return num_bytes / ms / 1e6 if ms > 0 else None


def _rates(measure: Callable[[str], float], num_bytes: int) -> dict[str, float | None]:
    """Of half of the bytes each way where both go."""
    parts = {"in": num_bytes, "out": num_bytes, "both": num_bytes // 2}
    return {key: _rate(part, measure(key)) for key, part in parts.items()}


def _raw_rates(accelerator: Accelerator, shape: Shape, copies: RawCopies) -> dict:
    device = accelerator.device
    hosts = [
        torch.empty(shape.copy_bytes, dtype=torch.uint8, pin_memory=True)
        for _ in range(shape.num_copies)
    ]
    devices = [torch.empty_like(host, device=device) for host in hosts]
    streams = {way: accelerator.stream() for way in WAYS}
    half = shape.num_copies // 2
    ranges = {
        "in": {"in": range(2 * half)},
        "out": {"out": range(2 * half)},
        "both": {"in": range(half), "out": range(half, 2 * half)},
    }

    def copy(key: str) -> None:
        for way in ranges[key]:
            streams[way].wait_stream(accelerator.current_stream())
        for step in range(2 * half):  # the directions take turns
            for way, indices in ranges[key].items():
                if step < len(indices):
                    host, there = hosts[indices[step]], devices[indices[step]]
                    to, source = (there, host) if way == "in" else (host, there)
                    copies.copy(to, source, way, streams[way])
        for way in ranges[key]:
            accelerator.current_stream().wait_stream(streams[way])

    return _rates(
        lambda key: accelerator.median_ms(lambda: copy(key), TIMES), 2 * half * shape.copy_bytes
    )


def _swap_rates(accelerator: Accelerator, shape: Shape) -> dict:
    """One tensor out and back is what a layer's input does."""
    device = accelerator.device
    context = swapline.SwapContext(device)
    half = shape.num_copies // 2
    swaps = [
        SwapTensors([torch.ones(shape.copy_bytes, dtype=torch.uint8, device=device)], context)
        for _ in range(2 * half)
    ]

    def measure_turns(outs: list[SwapTensors], ins: list[SwapTensors]) -> float:
        accelerator.synchronize()
        start = accelerator.mark()
        for i in range(max(len(outs), len(ins))):
            if i < len(outs):
                outs[i].swap_to_host(async_op=True)
            if i < len(ins):
                ins[i].swap_to_device(async_op=True)
        for each in outs:
            each.wait_d2h_and_release_device_tensor()
        for each in ins:
            each.wait_h2d_and_release_cpu_tensor()
        end = accelerator.mark()
        accelerator.synchronize()
        context.settle_all()
        return start.elapsed_time(end)

    first, second = swaps[:half], swaps[half:]
    measured: dict[str, list[float]] = {"in": [], "out": [], "both": []}
    for _ in range(TIMES + 1):
        measured["out"].append(measure_turns(swaps, []))
        measured["in"].append(measure_turns([], swaps))
        measure_turns(second, [])
        measured["both"].append(measure_turns(first, second))
        measure_turns([], first)
    # The first round pins memory.
    medians = {key: sorted(times[1:])[TIMES // 2] for key, times in measured.items()}
    return _rates(medians.__getitem__, 2 * half * shape.copy_bytes)


def _optimizer_rates(accelerator: Accelerator, shape: Shape) -> dict[str, float | None]:
    stack = make_stack(accelerator, shape, num_layers=4)
    for parameter in stack.parameters():
        parameter.grad = torch.zeros_like(parameter)
    context = swapline.SwapContext(accelerator.device, timing=True)
    optimizer = AdamW(stack.parameters(), context=context, **shape.optimizer_options)
    for _ in range(3):
        optimizer.step()
    times = optimizer.take_step_times()[-1]
    num_bytes = optimizer.stats()["state_bytes"]
    return {"in": _rate(num_bytes, times["h2d_ms"]), "out": _rate(num_bytes, times["d2h_ms"])}
