"""LayerInputs' options and contexts, as Python gives them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from swapline import _core

Check = Callable[[torch.Tensor], bool]

_COUNTS = ("keep_last", "max_swapping_out")  # a number of inputs, or "auto"
_FIELDS = (
    "enabled",
    "preserve_rng_state",
    "module_tag",
    "num_layers",
    "keep_last",
    "prefetch",
    "prefetch_bytes",
    "max_swapping_out",
    "min_bytes",
    "max_host_bytes",
)


def make_options(fields: dict) -> _core.LayerInputOptions:
    """Raises TypeError or ValueError that names the field and says what is allowed."""
    options = _core.LayerInputOptions()
    for name, value in fields.items():
        if name not in _FIELDS:
            raise TypeError(
                f"LayerInputs has no option {name!r}; it has {', '.join(_FIELDS)}, custom_check"
            )
        default = getattr(options, name)
        setattr(options, name, _checked(name, value, type(default)))
    return options


def _checked(name: str, value, wanted: type):
    if name in _COUNTS and value == "auto":
        return _core.AUTO
    if wanted is int:
        allowed = '0 or more, or "auto"' if name in _COUNTS else "0 or more"
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"LayerInputs: {name} is {value!r}; it must be an integer, {allowed}")
        if value < 0:
            raise ValueError(f"LayerInputs: {name} is {value}; it must be {allowed}")
    elif not isinstance(value, wanted):
        raise TypeError(f"LayerInputs: {name} is {value!r}; it must be a {wanted.__name__}")
    return value


def make_context(context_or_device) -> _core.SwapContext:
    """A SwapContext as it is; for a device one of its own."""
    if isinstance(context_or_device, _core.SwapContext):
        return context_or_device
    return _core.SwapContext(context_or_device)
