"""apply(args): puts what the options ask for in its places, and takes it away again."""

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

from typing_extensions import Self

from swapline.megatron import arguments
from swapline.megatron.layers import (
    BACKWARD_FUNCTIONS,
    FORWARD_BACKWARD_FUNCTIONS,
    FORWARD_FUNCTIONS,
    wrap_transformer_layer,
    wrapper_of,
)
from swapline.megatron.optimizer import swap_optimizer

_OVERLAP = "mindspeed.core.transformer.moe.moe_feature.fb_overlap"
_OVERLAP_MODULES = {
    f"{_OVERLAP}.overlap_funcs.fwd": FORWARD_FUNCTIONS,
    f"{_OVERLAP}.overlap_funcs.fwdbwd": FORWARD_BACKWARD_FUNCTIONS,
    f"{_OVERLAP}.transformer_layer": BACKWARD_FUNCTIONS,
}


class Applied:
    """What apply() has put in place. undo(), or the end of a `with` block, puts back what was
    there: then layers no longer swap, so let no backward be outstanding. Optimizers go on."""

    def __init__(self) -> None:
        self._former: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        self._former.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._former:
            setattr(*self._former.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def apply(args: Any) -> Applied:
    """Makes the models and optimizers that Megatron builds from now on swap, as `args` ask for.

    args: Megatron's, with add_swap_arguments()' options, or any object with attributes of their
    names. Call it before the model is built. With --swap-layer-input it wraps TransformerLayer and,
    where args.moe_fb_overlap is set, MindSpeed's forward-backward overlap functions; with
    --swap-optimizer, get_megatron_optimizer. Without either nothing happens.
    It holds to the end of the process, or until undo().

    Throws ValueError for contradictions and for a second call, ImportError where Megatron, or
    MindSpeed with moe_fb_overlap, is not installed. Nothing is left changed then.
    """
    arguments.check(args)
    applied = Applied()
    try:
        if getattr(args, "swap_layer_input", False):
            _apply_layer_input(args, applied)
        if getattr(args, "swap_optimizer", False):
            _apply_optimizer(args, applied)
    except BaseException:
        applied.undo()
        raise
    return applied


def _import(name: str, purpose: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {name}, which cannot be imported: {error}") from error


def _apply_layer_input(args: Any, applied: Applied) -> None:
    granularity = getattr(args, "recompute_granularity", "full")
    if granularity != "full":
        warnings.warn(
            f"--swap-layer-input has no effect with --recompute-granularity {granularity}: layers "
            "must be recomputed as a whole (full)",
            stacklevel=3,
        )
    layers = _import("megatron.core.transformer.transformer_layer", "--swap-layer-input")
    wrap_transformer_layer(layers.TransformerLayer, set_attribute=applied.replace)
    if not getattr(args, "moe_fb_overlap", False):
        return
    for module_name, functions in _OVERLAP_MODULES.items():
        module = _import(module_name, "--swap-layer-input with --moe-fb-overlap")
        for name in functions:
            function = getattr(module, name)
            _replace_everywhere(applied, name, function, wrapper_of(name)(function))


def _apply_optimizer(args: Any, applied: Applied) -> None:
    module = _import("megatron.core.optimizer", "--swap-optimizer")
    build = module.get_megatron_optimizer
    if hasattr(build, "_swapline_build"):
        raise ValueError("--swap-optimizer is in place already: call apply() once")

    def get_megatron_optimizer(*args_: Any, **kwargs: Any) -> Any:
        return swap_optimizer(build(*args_, **kwargs), times=args.swap_optimizer_times)

    get_megatron_optimizer._swapline_build = build
    _replace_everywhere(applied, "get_megatron_optimizer", build, get_megatron_optimizer)


def _replace_everywhere(
    applied: Applied, name: str, function: Callable, replacement: Callable
) -> None:
    """Megatron's and MindSpeed's modules import functions by name: in each one that has it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] not in ("megatron", "mindspeed"):
            continue
        if vars(module).get(name) is function:
            applied.replace(module, name, replacement)
