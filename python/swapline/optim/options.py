"""What is beyond torch.optim's arguments: where states live and how they move."""

import dataclasses
import numbers

import torch

from swapline import _core

_GIB = 1 << 30
_STATE_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class SwapOptions:
    """The keyword arguments that swapline.optim's classes share.

    placement: "swap": states in pinned host memory; "device": resident, the plain optimizer.
    swap_optimizer_times: step() holds at most all states / times on the device, and at least what
        the pipeline needs. A bound, not an order: less is used where that is faster.
    swap_optimizer_arena_bytes: the same bound in bytes; 0: none.
    swap_optimizer_fraction: the share of the states that is swapped, 0 to 1; the rest stays on the
        device between steps while there is room, until the states are read.
    swap_optimizer_min_bytes: parameters with fewer bytes of states keep them on the device.
    virtual_optimizer_size: GiB of states, the first ones, that the update's kernel reads and writes
        in host memory itself; "all"; None: none.
    state_dtype: of the moments; None: the parameter's, or float32 where it has a master.
    master_weights: half and bfloat16 parameters have a float32 copy among their states.
    num_slots: chunks on the device at once, at least 3.
    link_bytes_per_s, copy_latency_s: of the link, per direction; they set the size of a chunk.
    """

    swap_optimizer_times: int = 16
    swap_optimizer_arena_bytes: int = 0
    swap_optimizer_fraction: float = 1.0
    swap_optimizer_min_bytes: int = 0
    state_dtype: torch.dtype | None = None
    master_weights: bool = False
    placement: str = "swap"
    virtual_optimizer_size: float | str | None = None
    num_slots: int = 3
    link_bytes_per_s: float = 25e9
    copy_latency_s: float = 10e-6

    def __post_init__(self) -> None:
        self._check_int("swap_optimizer_times", 1)
        self._check_int("swap_optimizer_arena_bytes", 0)
        self._check_int("swap_optimizer_min_bytes", 0)
        self._check_int("num_slots", 3)
        for name in ("swap_optimizer_fraction", "link_bytes_per_s", "copy_latency_s"):
            if not _is_number(getattr(self, name)):
                raise TypeError(f"{name} must be a number, got {getattr(self, name)!r}")
        if not 0 <= self.swap_optimizer_fraction <= 1:
            raise ValueError(
                f"swap_optimizer_fraction must be in [0, 1], got {self.swap_optimizer_fraction}"
            )
        if not self.link_bytes_per_s > 0:
            raise ValueError(f"link_bytes_per_s must be above 0, got {self.link_bytes_per_s}")
        if not self.copy_latency_s >= 0:
            raise ValueError(f"copy_latency_s must be at least 0, got {self.copy_latency_s}")
        if self.placement not in ("swap", "device"):
            raise ValueError(f'placement must be "swap" or "device", got {self.placement!r}')
        if self.state_dtype is not None and self.state_dtype not in _STATE_DTYPES:
            raise ValueError(
                "state_dtype must be None, float32, float64, float16 or bfloat16, got "
                f"{self.state_dtype!r}"
            )
        if not isinstance(self.master_weights, bool):
            raise TypeError(f"master_weights must be a bool, got {self.master_weights!r}")
        self.virtual_bytes()

    def _check_int(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer of at least {least}, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")

    def virtual_bytes(self) -> int:
        size = self.virtual_optimizer_size
        if size is None:
            return 0
        if isinstance(size, str) and size == "all":
            return (1 << 64) - 1  # SIZE_MAX
        if not _is_number(size) or not 0 <= size < float("inf"):
            raise ValueError(
                f'virtual_optimizer_size must be GiB as a number, "all" or None, got {size!r}'
            )
        return int(size * _GIB)

    def needs_contexts(self) -> bool:
        return self.placement == "swap" or self.virtual_bytes() > 0

    def for_engine(self, kernel: "_core.AdamKernel") -> "_core.AdamOptions":
        options = _core.AdamOptions()
        placements = _core.StatePlacement
        options.placement = placements.SWAP if self.placement == "swap" else placements.DEVICE
        options.virtual_optimizer_bytes = self.virtual_bytes()
        options.kernel = kernel
        for name in (
            "swap_optimizer_times",
            "swap_optimizer_arena_bytes",
            "swap_optimizer_fraction",
            "swap_optimizer_min_bytes",
            "state_dtype",
            "master_weights",
            "num_slots",
            "link_bytes_per_s",
            "copy_latency_s",
        ):
            setattr(options, name, getattr(self, name))
        return options


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


class Contexts:
    """A SwapContext for each device: the user's, or the optimizer's own.

    Shared by deep copies of an optimizer; a pickled one makes its own.
    """

    def __init__(self, given: "_core.SwapContext | list[_core.SwapContext] | None") -> None:
        if given is not None and not isinstance(given, (list, tuple)):
            given = [given]
        for context in given or []:
            if not isinstance(context, _core.SwapContext):
                raise TypeError(
                    "context must be a SwapContext, a list of them (one for each device) or None, "
                    f"got {context!r}"
                )
        self._are_given = given is not None
        self._by_device = {context.device: context for context in given or []}

    def of(self, device: torch.device) -> "_core.SwapContext":
        """Of a device that has parameters. Makes one unless the user gave contexts."""
        if device not in self._by_device:
            if self._are_given:
                there = ", ".join(str(known) for known in self._by_device)
                raise ValueError(
                    f"parameters are on {device} and context is of {there}: give a list with a "
                    "SwapContext for each device, or leave context out"
                )
            self._by_device[device] = _core.SwapContext(device)
        return self._by_device[device]

    def settle_done(self) -> None:
        for context in self._by_device.values():
            context.settle_done()

    def __deepcopy__(self, memo: dict) -> "Contexts":
        return self

    def __getstate__(self) -> dict:
        return {"_are_given": False, "_by_device": {}}
