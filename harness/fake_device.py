"""Python's side of a fake runtime: which mode it runs in, what was asked of it, what is wrong.

    from fake_device import FakeDevice
    fake = FakeDevice("cuda")  # or "npu"; nothing has run on the device yet
    fake.mode("late-copies")
    fake.clear(); ...; fake.log(); fake.races(); fake.count("HOSTWAIT")

harness/README.md says what the modes and the words of the log are.
"""

import contextlib
import ctypes
import os
import pathlib

import torch

RUNTIMES = {"cuda": "libcudart.so.13", "npu": "libascendcl.so"}
MODES = ("eager", "late", "late-copies", "late-compute", "random:1", "random:2")


class FakeDevice:
    """One of a process. `runtime`: the folder that harness/CMakeLists.txt built."""

    def __init__(self, kind: str, runtime: pathlib.Path | None = None) -> None:
        self.kind = kind
        folder = pathlib.Path(runtime or os.environ["HARNESS_RUNTIME"])
        if kind == "npu":
            import torch_npu  # noqa: F401 - registers the device
        self._module = getattr(torch, kind)
        self._module.set_device(0)
        # Loaded already, by the wheel: this is a handle to it.
        self._runtime = ctypes.CDLL(RUNTIMES[kind])
        for name in ("num_lines", "count", "num_races", "device_bytes", "pinned_bytes"):
            self._function(name).restype = ctypes.c_int64
        for name in ("line", "race"):
            self._function(name).restype = ctypes.c_char_p
            self._function(name).argtypes = [ctypes.c_int64]
        self._function("set_capacity").argtypes = [ctypes.c_int64, ctypes.c_int64]
        self._function("fail").argtypes = [ctypes.c_char_p, ctypes.c_int64]
        ctypes.CDLL(str(folder / "lib" / "libharness_kernels.so"), mode=ctypes.RTLD_GLOBAL)

    def _function(self, name: str):
        return getattr(self._runtime, f"harness_{name}")

    def flush(self) -> None:
        """What the backend still holds back is handed to the runtime; no stream runs for it."""
        if self.kind == "npu":  # torch_npu's task queue
            for device in range(torch.npu.device_count()):
                with contextlib.suppress(RuntimeError):  # a device that nobody has used
                    torch.npu.current_stream(device).npu_stream  # noqa: B018 - empties the queue

    def mode(self, mode: str) -> None:
        self.flush()
        if self._function("set_mode")(mode.encode()) != 0:
            raise ValueError(f"no mode {mode!r}; there are {', '.join(MODES)} with any seed")

    def log(self) -> list[str]:
        self.flush()
        return [self._function("line")(i).decode() for i in range(self._function("num_lines")())]

    def count(self, word: str) -> int:
        """How often a word of the log was said since clear()."""
        self.flush()
        return self._function("count")(word.encode())

    def clear(self) -> None:
        self.flush()
        self._function("clear_log")()

    def races(self) -> list[str]:
        self.flush()
        return [self._function("race")(i).decode() for i in range(self._function("num_races")())]

    def clear_races(self) -> None:
        self.flush()
        self._function("clear_races")()

    def device_bytes(self, device: int = 0) -> int:
        """Held from the vendor's runtime, the allocator's cache included."""
        return self._function("device_bytes")(device)

    def pinned_bytes(self) -> int:
        return self._function("pinned_bytes")()

    def set_capacity(self, device_bytes: int = -1, pinned_bytes: int = -1) -> None:
        """Bytes of each device, and that can be pinned; -1: as it is."""
        self._function("set_capacity")(device_bytes, pinned_bytes)

    def drop_waits(self, waiter: int = -1, of: int = -1) -> None:
        """Waits of one stream for another, by their numbers in the log, are not made."""
        self.flush()
        self._function("drop_waits")(waiter, of)

    def fail(self, what: str, after: int = 0) -> None:
        """Of "device-allocation", "pinned-allocation", "copy", "launch": one fails, behind `after`
        others."""
        self._function("fail")(what.encode(), after)

    def break_device(self, is_broken: bool = True) -> None:
        """Every call fails, as after an illegal access; or no more."""
        self._function("break")(int(is_broken))
