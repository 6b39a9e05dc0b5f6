"""torch.sim: what torch and its users ask of an accelerator's module, under torch.cuda's names.

Streams and events are torch.Stream and torch.Event: `torch.sim.Stream(device, priority=0)`,
`torch.sim.Event(enable_timing=True)`; elapsed_time is in virtual milliseconds.
"""

import dataclasses
import os
import types
from collections import OrderedDict
from typing import Any

import torch

from swapline import _sim
from swapline.sim.figures import Device, device_index

Stream = torch.Stream
Event = torch.Event

# torch.utils.checkpoint replays the device's random numbers only if this is set.
_initialized = True
_process = os.getpid()


def init() -> None:
    """There is nothing to be initialised; here for code that calls it."""
    _lazy_init()


def _lazy_init() -> None:
    if _is_in_bad_fork():
        raise RuntimeError(
            "a forked process cannot use the simulated device of its parent: start processes by "
            "'spawn' or 'forkserver'"
        )


def _is_in_bad_fork() -> bool:
    return os.getpid() != _process


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


# Devices.


def device_count() -> int:
    return _sim.num_devices


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    torch.accelerator.set_device_index(device_index(device))


class device:
    """Makes a device the current one of this thread, for a `with` block. None or -1: no effect."""

    def __init__(self, device: Device) -> None:
        self._index = -1 if device is None or device == -1 else device_index(device)
        self._former = -1

    def __enter__(self) -> None:
        self._former = current_device()
        if self._index >= 0:
            set_device(self._index)

    def __exit__(self, *error: object) -> None:
        set_device(self._former)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    name: str
    total_memory: int  # bytes
    multi_processor_count: int = 1
    major: int = 0
    minor: int = 0


def get_device_properties(device: Device = None) -> DeviceProperties:
    capacity = _sim.memory_stats(device_index(device))["capacity_bytes"]
    return DeviceProperties(get_device_name(device), capacity)


def get_device_name(device: Device = None) -> str:
    device_index(device)
    return _sim.options().spec.name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Device, peer: Device) -> bool:
    return device_index(device) != device_index(peer)


def synchronize(device: Device = None) -> None:
    torch.accelerator.synchronize(device_index(device))


# Streams.


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    index = device_index(device)
    kind = torch.accelerator.current_stream(index).device_type
    return torch.Stream(stream_id=0, device_index=index, device_type=kind)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


class stream:
    """Makes a stream, and its device, current for a `with` block. None: no effect."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._former_device = current_device()
            self._former_stream = current_stream(self._stream.device)
            set_stream(self._stream)

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            set_stream(self._former_stream)
            set_device(self._former_device)


# Random numbers. A generator's state is 16 bytes: seed and offset.


default_generators = tuple(_sim.default_generator(i) for i in range(device_count()))


def _get_generator(device: Device = None) -> torch.Generator:
    return default_generators[device_index(device)]


def manual_seed(seed: int) -> None:
    _get_generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for generator in default_generators:
        generator.manual_seed(seed)


def seed() -> None:
    _get_generator().seed()


def seed_all() -> None:
    manual_seed_all(_get_generator().seed())


def initial_seed() -> int:
    return _get_generator().initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    return _get_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    _get_generator(device).set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# Memory, in bytes.


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """Under torch.cuda's keys. Those that the machine does not count are 0."""
    _sim.wait_until_idle(device_index(device))
    return torch.accelerator.memory_stats(device_index(device))


def memory_allocated(device: Device = None) -> int:
    return _sim.memory_stats(device_index(device))["allocated_bytes"]


def max_memory_allocated(device: Device = None) -> int:
    return _sim.memory_stats(device_index(device))["peak_allocated_bytes"]


def memory_reserved(device: Device = None) -> int:
    return _sim.memory_stats(device_index(device))["reserved_bytes"]


def max_memory_reserved(device: Device = None) -> int:
    return _sim.memory_stats(device_index(device))["peak_reserved_bytes"]


def reset_peak_memory_stats(device: Device = None) -> None:
    _sim.reset_peak_memory(device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def empty_cache() -> None:
    """Waits for the current device and gives its cached segments back."""
    _sim.empty_cache(current_device())


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes; cached segments count as used."""
    return torch.accelerator.get_memory_info(device_index(device))


# Mixed precision.


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def is_autocast_enabled() -> bool:
    return torch.is_autocast_enabled("sim")


def get_autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("sim")


# torch.load looks for the index of a location here.
_utils = types.SimpleNamespace(
    _get_device_index=lambda device, optional=False, allow_cpu=False: device_index(device)
)
