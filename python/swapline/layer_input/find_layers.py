"""Which modules of a model are its layers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from torch import nn

Layers: TypeAlias = "Sequence[nn.Module] | type[nn.Module] | Callable[[nn.Module], bool] | None"


def find_layers(models: Sequence[nn.Module], layers: Layers = None) -> list[nn.Module]:
    """The layers whose inputs are swapped, in order.

    layers: a list of modules as it is; a class, or a predicate of modules: those of the models that
    it holds for; None: the longest ModuleList of each model, or else its most modules of one class
    side by side.
    Raises ValueError when there are none, and for layers made by torch.compile, whose inputs no
    hook sees.
    """
    if layers is None:
        found = [layer for model in models for layer in _longest_list(model)]
    elif isinstance(layers, type):
        found = [m for model in models for m in model.modules() if isinstance(m, layers)]
    elif callable(layers) and not isinstance(layers, (nn.Module, Iterable)):
        found = [m for model in models for m in model.modules() if layers(m)]
    else:
        found = list(layers)
    found = list(dict.fromkeys(_unwrapped(layer) for layer in found))
    if not found:
        names = ", ".join(type(model).__name__ for model in models)
        raise ValueError(
            f"SwapLayerInputs: no layers found in {names}; give layers=[...], their class, or a "
            "function that says of a module whether it is one"
        )
    for layer in found:
        _refuse_compiled(layer)
    return found


def _unwrapped(layer: nn.Module) -> nn.Module:
    # torch's checkpoint_wrapper: the recomputed region begins inside it.
    while isinstance(inner := getattr(layer, "_checkpoint_wrapped_module", None), nn.Module):
        layer = inner
    return layer


def _refuse_compiled(layer: nn.Module) -> None:
    # torch._dynamo is slow to import; who has compiled something has imported it.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    wrapped = dynamo is not None and isinstance(layer, dynamo.OptimizedModule)
    if wrapped or getattr(layer, "_compiled_call_impl", None) is not None:
        raise ValueError(
            f"SwapLayerInputs: the layer {type(layer).__name__} is compiled, so its input cannot "
            "be seen. Compile what is inside the layer, or use swapline.layer_input.recompute "
            "around the compiled layer"
        )


def _longest_list(model: nn.Module) -> list[nn.Module]:
    """The longest ModuleList; without one, the most children of one class in one module. What is
    inside an element of a list found is not looked at: experts are no layers."""
    return _longest(model, _elements) or _longest(model, _children_alike)


def _longest(model: nn.Module, alike: Callable[[nn.Module], list[nn.Module]]) -> list[nn.Module]:
    best: list[nn.Module] = []
    waiting = [model]
    while waiting:
        module = waiting.pop(0)
        found = alike(module)
        if len(found) > len(best):
            best = found
        if not found:
            waiting += module.children()
    return best


def _elements(module: nn.Module) -> list[nn.Module]:
    return list(module) if isinstance(module, nn.ModuleList) else []


def _children_alike(module: nn.Module) -> list[nn.Module]:
    by_class: dict[type, list[nn.Module]] = {}
    for child in module.children():
        if next(child.parameters(), None) is not None:
            by_class.setdefault(type(_unwrapped(child)), []).append(child)
    longest = max(by_class.values(), key=len, default=[])
    return longest if len(longest) > 1 else []
