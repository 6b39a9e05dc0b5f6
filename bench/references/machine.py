"""The simulated device of the comparison, and what a piece of work on it took."""

from collections.abc import Callable
from dataclasses import dataclass

import swapline.sim
import torch

MEBIBYTE = 1 << 20
PRESET = "trial"  # the published runs' cost model: 300 TFLOP/s, 25 GB/s each way, 10 us a copy
DEVICE = "sim"


@dataclass
class Taken:
    """What some steps took on the device, each."""

    step_ms: float
    peak_mib: float  # allocated, beyond parameters and gradients
    reserved_mib: float  # the same of reserved memory: with what record_stream keeps back
    copies_out: float
    copies_in: float
    out_mib: float
    in_mib: float
    races: float


def use(**settings) -> None:
    """A fresh machine: nothing of the runs before may be held."""
    swapline.sim.configure(PRESET, **settings)


def allocated_bytes() -> int:
    return swapline.sim.memory()["allocated_bytes"]


def measure(step: Callable[[], None], num_steps: int, held: int, *, synced: bool) -> Taken:
    """`held`: bytes of parameters and gradients. `synced`: the host waits for the device after
    each step; otherwise it runs ahead."""
    before_ms = swapline.sim.time_ms()
    races = swapline.sim.num_races()
    counted = swapline.sim.counters()
    swapline.sim.reset_peak_memory()
    for _ in range(num_steps):
        step()
        if synced:
            swapline.sim.time_ms()
    step_ms = (swapline.sim.time_ms() - before_ms) / num_steps
    memory = swapline.sim.memory()
    more = swapline.sim.counters()

    def each(name: str) -> float:
        return (more[name] - counted[name]) / num_steps

    return Taken(
        step_ms=step_ms,
        peak_mib=(memory["peak_allocated_bytes"] - held) / MEBIBYTE,
        reserved_mib=(memory["peak_reserved_bytes"] - held) / MEBIBYTE,
        copies_out=each("num_copies_out"),
        copies_in=each("num_copies_in"),
        out_mib=each("bytes_out") / MEBIBYTE,
        in_mib=each("bytes_in") / MEBIBYTE,
        races=(swapline.sim.num_races() - races) / num_steps,
    )


def on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies, after the device is done."""
    swapline.sim.time_ms()
    return [tensor.detach().cpu().clone() for tensor in tensors]


def same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
