"""The device under test: the simulated one, a real backend on its fake runtime, or real hardware.

A real device tells neither what was asked of it nor of races: what needs that is skipped there.
"""

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator

import torch

from swapline import SwapContext

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("sim", "npu", "cuda")
# The host waits; the host waits where nobody asked it to; bytes go by way of other memory.
SLOW_WORDS = ("HOSTWAIT", "BLOCKS", "STAGED")


class Device:
    """What all of them have. `schedules`: orders in which work may run that nobody waits for."""

    schedules: tuple[str, ...] = ("as it is",)
    has_log = False

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __str__(self) -> str:
        return self.kind

    @property
    def module(self):
        """torch.cuda, torch.npu, torch.sim."""
        return getattr(torch, self.kind)

    def at(self, index: int = 0) -> torch.device:
        return torch.device(self.kind, index)

    def synchronize(self) -> None:
        self.module.synchronize()

    def context(self, index: int = 0, **options) -> SwapContext:
        options.setdefault("slab_bytes", 1 << 20)
        return SwapContext(self.at(index), **options)

    def use(self, schedule: str) -> None:
        """Before a test."""

    def races(self) -> list[str]:
        return []

    def clear_races(self) -> None:
        pass


class LoggedDevice(Device):
    """One that writes down what was asked of it; sim/core/call_log.h has the words."""

    has_log = True

    def log(self) -> list[str]:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def count(self, word: str) -> int:
        return sum(line.split(" ", 1)[0] == word for line in self.log())

    def slow_calls(self) -> dict[str, int]:
        return {word: self.count(word) for word in SLOW_WORDS}

    def pinned_bytes(self) -> int:
        """Held from the vendor's runtime, what the backend keeps for later included."""
        raise NotImplementedError

    def failing(self, what: str, after: int = 0) -> contextlib.AbstractContextManager:
        """Of "device-allocation", "pinned-allocation", "copy", "launch": one fails."""
        raise NotImplementedError


class SimDevice(LoggedDevice):
    schedules = ("eager", "late")

    def __init__(self, kind: str) -> None:
        import swapline.sim

        super().__init__(kind)
        self._sim = swapline.sim

    def use(self, schedule: str) -> None:
        self._sim.configure(
            "tiny",
            late_copies=schedule == "late",
            log=True,
            watch_host_ops=True,
            round_pinned=True,
        )

    def log(self) -> list[str]:
        return self._sim.log()

    def clear(self) -> None:
        self._sim.clear_log()

    def races(self) -> list[str]:
        return self._sim.races()

    def clear_races(self) -> None:
        self._sim.clear_races()

    def pinned_bytes(self) -> int:
        return self._sim.pinned_memory()["allocated_bytes"]

    def failing(self, what: str, after: int = 0) -> contextlib.AbstractContextManager:
        return self._sim.faults(**{f"fail_{what.replace('-', '_')}": after})


class FakeRuntimeDevice(LoggedDevice):
    def __init__(self, kind: str) -> None:
        sys.path.insert(0, str(ROOT / "harness"))
        import fake_device

        super().__init__(kind)
        self.schedules = fake_device.MODES
        self.fake = fake_device.FakeDevice(kind)
        for name in ("log", "clear", "count", "races", "clear_races", "pinned_bytes"):
            setattr(self, name, getattr(self.fake, name))

    def use(self, schedule: str) -> None:
        self.fake.mode(schedule)
        self.fake.clear()

    @contextlib.contextmanager
    def failing(self, what: str, after: int = 0) -> Iterator[None]:
        self.fake.fail(what, after)
        try:
            yield
        finally:
            self.fake.fail(what, -1)


class RealDevice(Device):
    def __init__(self, kind: str) -> None:
        if kind == "npu":
            import torch_npu  # noqa: F401 - registers the device
        super().__init__(kind)


def make_device(kind: str) -> Device:
    """A runtime that was built and named in the environment is taken for the real one."""
    if kind == "sim":
        return SimDevice(kind)
    return FakeRuntimeDevice(kind) if "HARNESS_RUNTIME" in os.environ else RealDevice(kind)
