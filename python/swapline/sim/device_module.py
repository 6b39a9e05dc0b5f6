"""torch.sim: what torch and its users ask of an accelerator's module."""

import torch

from swapline import _sim

_initialized = True
Stream = torch.Stream
Event = torch.Event


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return _sim.num_devices


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device) -> None:
    torch.accelerator.set_device_index(device)


def synchronize(device=None) -> None:
    torch.accelerator.synchronize(device) if device is not None else torch.accelerator.synchronize()


def current_stream(device=None):
    return torch.accelerator.current_stream(device)


def stream(stream):
    return stream


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _sim.default_generator(index).manual_seed(seed)


def get_rng_state(device="sim"):
    index = torch.device(device).index
    return _sim.default_generator(current_device() if index is None else index).get_state()


def set_rng_state(state, device="sim") -> None:
    index = torch.device(device).index
    _sim.default_generator(current_device() if index is None else index).set_state(state)


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]
