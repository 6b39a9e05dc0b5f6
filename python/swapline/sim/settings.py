"""What the simulated machine is: its devices' figures, what it checks, what goes wrong in it."""

import contextlib
import dataclasses
import gc
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from swapline import _sim

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}iB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power


def size_in_bytes(size: int | str) -> int:
    """A size given as bytes or as text with a unit: "96MiB", "1.5 GiB", "40GB"."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = None
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2] not in _UNITS:
        raise ValueError(
            f"{size!r} is no size: give bytes as an int, or a number with one of "
            f"{', '.join(unit for unit in _UNITS if unit)} as text, for example '96MiB'"
        )
    return int(float(match[1]) * _UNITS[match[2]])


@dataclasses.dataclass(frozen=True)
class Faults:
    """What goes wrong on purpose. Counts start when the faults are set: 0 fails the next one,
    -1 none.

    fail_device_allocation  torch.OutOfMemoryError
    fail_pinned_allocation  RuntimeError
    fail_copy               a copy between host and device: RuntimeError, nothing was copied
    fail_launch             an operator: RuntimeError, before it touches anything
    lose_devices            every call on a device, queries too: RuntimeError, as after a fault that
                            a real device does not recover from
    copy_slowdown           every copy's bytes take this many times longer
    copy_jitter             and up to this share more, drawn from `seed`
    """

    fail_device_allocation: int = -1
    fail_pinned_allocation: int = -1
    fail_copy: int = -1
    fail_launch: int = -1
    lose_devices: bool = False
    copy_slowdown: float = 1.0
    copy_jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name.startswith("fail_") and value < -1:
                raise ValueError(f"{name} is {value}: allowed are 0 and above, or -1")
        if self.copy_slowdown <= 0 or self.copy_jitter < 0 or self.seed < 0:
            raise ValueError(
                f"copy_slowdown is {self.copy_slowdown} (allowed: above 0), copy_jitter "
                f"{self.copy_jitter} and seed {self.seed} (allowed: 0 and above)"
            )


def _named(given: Mapping[str, Any], allowed: list[str], what: str) -> None:
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise TypeError(f"no {what} named {', '.join(unknown)}; there are {', '.join(allowed)}")


def _make_faults(given: Faults | Mapping[str, Any] | None) -> _sim.Faults:
    if not isinstance(given, Faults):
        given = dict(given or {})
        _named(given, [field.name for field in dataclasses.fields(Faults)], "fault")
        given = Faults(**given)
    made = _sim.Faults()
    for name, value in dataclasses.asdict(given).items():
        setattr(made, name, value)
    return made


_SWITCHES = (
    "dry_run",
    "check_races",
    "late_copies",
    "trace",
    "log",
    "round_pinned",
    "watch_host_ops",
)
_OPTIONS = ("capacity", *_SWITCHES, "faults")

# Fields that a device can do without; every other figure must be above zero.
_MAY_BE_ZERO = (
    "launch_latency",
    "host_op_time",
    "copy_latency",
    "peer_latency",
    "device_allocation_time",
    "pinned_allocation_time",
)


def _make_spec(preset: str, overrides: dict[str, Any]) -> _sim.DeviceSpec:
    spec = _sim.DeviceSpec(_sim.preset(preset))
    fields = [name for name in dir(spec) if not name.startswith("_")]
    _named(overrides, [*_OPTIONS, *fields], "option, or figure of a device,")
    for name, value in overrides.items():
        if name == "memory_bytes":
            value = size_in_bytes(value)
        if name not in ("name", "source", "full_duplex"):
            least = "0 and above" if name in _MAY_BE_ZERO else "above 0"
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
                raise ValueError(f"{name} is {value!r}: allowed are numbers {least}")
            if isinstance(getattr(spec, name), int):
                value = round(value)  # whole bytes and nanoseconds
        setattr(spec, name, value)
    return spec


def _make_options(
    preset: str = "tiny",
    *,
    capacity: int | str | None = None,
    dry_run: bool = False,
    check_races: bool = True,
    late_copies: bool = False,
    trace: bool = False,
    log: bool = False,
    round_pinned: bool = False,
    watch_host_ops: bool = False,
    faults: Faults | Mapping[str, Any] | None = None,
    **spec_overrides: Any,
) -> _sim.SimulatorOptions:
    made = _sim.SimulatorOptions()
    made.spec = _make_spec(preset, spec_overrides)
    if capacity is not None:
        made.capacity_bytes = size_in_bytes(capacity)
        if made.capacity_bytes == 0:
            raise ValueError("capacity is 0: allowed are sizes above 0, or None for the preset's")
    made.dry_run = dry_run
    made.check_races = check_races
    made.late_copies = late_copies
    made.trace = trace
    made.log = log
    made.round_pinned = round_pinned
    made.watch_host_ops = watch_host_ops
    made.faults = _make_faults(faults)
    return made


def _apply(options: _sim.SimulatorOptions) -> None:
    try:
        _sim.configure(options)
    except RuntimeError:
        # Autograd graphs and exceptions hold tensors in cycles, messages until they have left.
        gc.collect()
        for device in range(_sim.num_devices):
            torch.accelerator.synchronize(device)
        _sim.configure(options)


def configure(preset: str = "tiny", **options: Any) -> None:
    """Replaces the simulated machine: clocks at zero, empty memory, no races.

    preset          the device's figures; `presets()` lists the names
    capacity        bytes of memory of each device, as int or "96MiB"; None: the preset's
    dry_run         no memory and no numbers, only time and bytes: values read back are 0
    check_races     report accesses that no stream order, event or wait orders
    late_copies     move a non-blocking copy's bytes only when something ordered after it runs, and
                    poison freed memory: a missing wait then also gives wrong numbers
    trace           keep what `trace(path)` writes
    log             keep what `log()` returns
    round_pinned    pinned allocations take powers of two, as on real devices
    watch_host_ops  the race checker sees CPU operators on pinned memory too
    faults          a Faults, or a dict of its fields
    **overrides     fields of the device, by name: memory_bytes, h2d_bytes_per_s, … (rates per
                    second, times in ns)

    Raises RuntimeError when device or pinned memory is still held, ValueError or TypeError for what
    is not allowed; nothing is changed then.
    """
    _apply(_make_options(preset, **options))


@contextlib.contextmanager
def settings(preset: str = "tiny", **options: Any) -> Iterator[None]:
    """`configure` for a `with` block; the former settings come back at its end, on a fresh machine.

    Every device and pinned tensor made inside must be gone by then: RuntimeError otherwise. When
    the block raises, its error goes on, and a warning says so if the settings had to stay.
    """
    former = _sim.options()
    configure(preset, **options)
    try:
        yield
    except BaseException:
        try:
            _apply(former)
        except RuntimeError as held:
            warnings.warn(f"the former settings did not come back: {held}", stacklevel=3)
        raise
    _apply(former)


@contextlib.contextmanager
def faults(**fields: Any) -> Iterator[None]:
    """Sets faults (see Faults) for a `with` block; the former ones come back at its end."""
    former = _sim.options().faults
    _sim.set_faults(_make_faults(fields))
    try:
        yield
    finally:
        _sim.set_faults(former)


def options() -> dict[str, Any]:
    """The present settings; "spec" is a dict of the device's figures."""
    present = _sim.options()
    spec = {n: getattr(present.spec, n) for n in dir(present.spec) if not n.startswith("_")}
    named = {name: getattr(present, name) for name in ("capacity_bytes", *_SWITCHES)}
    return {"spec": spec, **named}


def presets() -> list[str]:
    """The names of the presets."""
    return [spec.name for spec in _sim.presets()]
