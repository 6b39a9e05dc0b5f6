"""The device under measurement: its memory, its clock, its vendor's own copies."""

from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import statistics
from collections.abc import Callable

import torch

KINDS = ("cuda", "npu", "sim")
MIB, GIB = 1 << 20, 1 << 30


class Accelerator:
    def __init__(self, kind: str, index: int = 0) -> None:
        if kind == "npu":
            import torch_npu  # noqa: F401 - registers the device
        elif kind == "sim":
            import swapline.sim  # noqa: F401 - registers the device
        self.kind = kind
        self.module = getattr(torch, kind)
        self.device = torch.device(kind, index)
        self.module.set_device(index)

    def __str__(self) -> str:
        total = self.total_bytes() / GIB
        return f"{self.module.get_device_name(self.device.index)}, {total:.1f} GiB"

    @property
    def is_fake(self) -> bool:
        """Whether the vendor's runtime is the harness', whose work takes no time of its own."""
        return "HARNESS_RUNTIME" in os.environ and self.kind != "sim"

    @property
    def is_real(self) -> bool:
        return not self.is_fake and self.kind != "sim"

    def stream(self) -> torch.Stream:
        return self.module.Stream(device=self.device)

    def current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)

    def synchronize(self) -> None:
        self.module.synchronize()

    def mark(self) -> torch.Event:
        """A time on the current stream."""
        event = torch.Event(self.device, enable_timing=True)
        event.record(self.current_stream())
        return event

    def median_ms(self, work: Callable[[], None], times: int) -> float:
        """What `work` takes on the current stream, once more before to warm it up."""
        work()
        measured = []
        for _ in range(times):
            self.synchronize()
            start = self.mark()
            work()
            end = self.mark()
            self.synchronize()
            measured.append(start.elapsed_time(end))
        return statistics.median(measured)

    # Memory.

    def total_bytes(self) -> int:
        return self.module.mem_get_info()[1]

    def free_bytes(self) -> int:
        return self.module.mem_get_info()[0]

    def allocated_bytes(self) -> int:
        return self.module.memory_allocated()

    def peak_bytes(self) -> tuple[int, int]:
        """Allocated and reserved, since forget_peak()."""
        return self.module.max_memory_allocated(), self.module.max_memory_reserved()

    def forget_peak(self) -> None:
        self.module.reset_peak_memory_stats()

    def clean(self) -> None:
        gc.collect()
        self.synchronize()
        self.module.empty_cache()


def host_bytes() -> int:
    """Of this machine or container, what is free for us."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or no limit
        return free
    return min(free, limit - used)


# Of both vendors: 1 is host to device, 2 is device to host.
COPY_KINDS = {"in": 1, "out": 2}
LIBRARIES = {"cuda": "libcudart", "npu": "libascendcl"}


class RawCopies:
    """The vendor's asynchronous copy between pinned and device memory, called by its C name; where
    there is no vendor, torch's."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._kind = accelerator.kind
        self.name = {"cuda": "cudaMemcpyAsync", "npu": "aclrtMemcpyAsync"}.get(
            self._kind, "Tensor.copy_"
        )
        if self._kind in LIBRARIES:
            self._function = getattr(self._library(), self.name)
            self._function.restype = ctypes.c_int

    def _library(self) -> ctypes.CDLL:
        """The one that torch has loaded, whatever its version and place."""
        name = LIBRARIES[self._kind]
        for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
            path = line.split()[-1]
            if pathlib.PurePath(path).name.startswith(f"{name}.so"):
                return ctypes.CDLL(path)
        raise RuntimeError(f"torch has loaded no {name}.so, so raw copies are not measured")

    def copy(self, to: torch.Tensor, source: torch.Tensor, way: str, stream: torch.Stream) -> None:
        num_bytes = ctypes.c_size_t(source.nbytes)
        if self._kind not in LIBRARIES:
            with stream:
                to.copy_(source, non_blocking=True)
            return
        # Of torch_npu's stream this also hands over what its task queue holds back.
        handle = ctypes.c_void_p(getattr(stream, f"{self._kind}_stream"))
        room = (num_bytes,) if self._kind == "npu" else ()
        status = self._function(
            ctypes.c_void_p(to.data_ptr()),
            *room,
            ctypes.c_void_p(source.data_ptr()),
            num_bytes,
            ctypes.c_int(COPY_KINDS[way]),
            handle,
        )
        if status != 0:
            raise RuntimeError(f"{self.name} returned {status}")
