"""What the simulated machine counted: memory, copies, virtual time, races, the trace."""

import os
import pathlib

import torch

from swapline import _sim

Device = int | str | torch.device | None

_NANOS_PER_MS = 1e6
MEMORY_KINDS = ("other", "parameters", "gradients", "optimizer_states", "layer_inputs")


def device_index(device: Device = None) -> int:
    """The index of a simulated device given in any form; None or "sim": the current one."""
    if device is None or isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != "sim":
            raise ValueError(f"{device} is no simulated device; allowed are sim, sim:0, sim:1, …")
        index = device.index
    if index is None:
        return torch.accelerator.current_device_index()
    if not 0 <= index < _sim.num_devices:
        raise ValueError(f"no device sim:{index}; there are sim:0 to sim:{_sim.num_devices - 1}")
    return index


def memory(device: Device = 0) -> dict:
    """Bytes and counts of a device's memory: capacity_bytes, allocated_bytes, reserved_bytes, their
    peaks, held_bytes (kept back for a recorded stream), num_allocations, num_segments_allocated,
    num_retries, num_out_of_memory, bytes_by_kind and, at the peak, peak_bytes_by_kind."""
    return _sim.memory_stats(device_index(device))


def pinned_memory() -> dict:
    """allocated_bytes, peak_allocated_bytes and num_allocations of pinned host memory."""
    return _sim.pinned_stats()


def reset_peak_memory(device: Device = 0) -> None:
    """The peaks of a device's memory are what is allocated now."""
    _sim.reset_peak_memory(device_index(device))


def set_memory_kind(tensor: torch.Tensor, kind: str) -> None:
    """Notes what a tensor's storage is used for, one of MEMORY_KINDS, for bytes_by_kind."""
    if kind not in MEMORY_KINDS:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(MEMORY_KINDS)}")
    _sim.set_memory_kind(tensor, kind)


def take_away(num_bytes: int, device: Device = 0) -> None:
    """Others now hold `num_bytes` of the device's capacity; 0 gives all of it back."""
    _sim.take_away(device_index(device), num_bytes)


def counters(device: Device = 0) -> dict:
    """num_ops (operators launched), num_copies_in/out and bytes_in/out (to and from the device),
    mapped_bytes_in/out (pinned memory that operators addressed themselves), num_streams,
    num_host_waits (for a stream, an event that was not done, the device) and
    num_blocking_copies (that the host waited for)."""
    return _sim.counters(device_index(device))


def time_ms(device: Device = 0) -> float:
    """Virtual milliseconds of the device's host, after it waited for the device."""
    index = device_index(device)
    torch.accelerator.synchronize(index)
    return _sim.host_time(index) / _NANOS_PER_MS


def advance_host_ms(duration_ms: float, device: Device = 0) -> None:
    """The host is busy with something else for so long."""
    _sim.advance_host(device_index(device), round(duration_ms * _NANOS_PER_MS))


def log() -> list[str]:
    """What was asked of all devices since clear_log(), a line each, in order; the setting `log` on.

    op STREAM NAME; copy STREAM FROM->TO N B ADDRESS -> ADDRESS; record STREAM EVENT; wait STREAM
    EVENT of STREAM; HOSTWAIT …; BLOCKS … (a copy that the host waited for)."""
    return _sim.log_lines()


def clear_log() -> None:
    _sim.clear_log()


def num_races() -> int:
    """Pairs of accesses that nothing ordered, since the last clear_races()."""
    return _sim.num_races()


def races() -> list[str]:
    """The first 100 races: both operators and streams, the bytes, and the wait that is missing."""
    return _sim.races()


def clear_races() -> None:
    """Forgets the races found so far."""
    _sim.clear_races()


def trace(path: str | os.PathLike) -> None:
    """Writes what happened so far as Chrome trace JSON (Perfetto, chrome://tracing): a process a
    device, lanes for host, streams, H2D, D2H and peer, and a memory curve by kind."""
    _require_trace()
    pathlib.Path(path).write_text(_sim.trace_json())


def clear_trace() -> None:
    """Forgets what happened so far."""
    _sim.clear_trace()


def name_stream(stream: torch.Stream, name: str) -> None:
    """The name of the stream's lane in the trace."""
    _sim.name_stream(device_index(stream.device), stream.stream_id, name)


def _require_trace() -> None:
    if not _sim.options().trace:
        raise RuntimeError("nothing was traced: configure(..., trace=True) before the run")
