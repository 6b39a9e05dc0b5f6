"""The RFC's five decorators, for frameworks that recompute and save layer inputs by themselves.

    Layer.__init__ = swap_layer_input_init_wrapper(Layer.__init__)     # this one first
    Layer.forward = swap_layer_input_forward_wrapper(Layer.forward)

The framework keeps the tensor; its memory is taken from under it after the first forward and put
back before the layer runs again. An input is known by its storage, never by its place in a queue,
so any order of micro-batches is right. While it is out nobody may read it: keep no views of
hidden_states, or refuse such layers with custom_check_fn.

Whose the managers are: each layer holds its own (layer.swap_manager), and that holds the group of
layers it swaps with. The decorated __init__ remembers the last group weakly: a layer joins it as
long as one of its layers lives. So a model's layers swap together, and nothing is left when it is
gone.
Two models of one class in a process may share a group; to part them give each its own group:
swap_layer_input_init_wrapper(fn, group=SwapGroupOfLayers()).
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch

from swapline.layer_input.manager import SwapGroupOfLayers, SwapLayerInputManager
from swapline.layer_input.options import Check


def swap_layer_input_init_wrapper(
    fn: Callable,
    *,
    group: SwapGroupOfLayers | None = None,
    module_tag: str = "default",
    prefetch: int = 1,
    custom_check_fn: Check | None = None,
    **options: Any,
) -> Callable:
    """Wraps a layer's __init__: afterwards the layer has a swap_manager.

    A layer that has one keeps it. One with is_mtp (or is_mtp_layer) has none, also if its base's
    construction made it one: a multi-token-prediction module runs more than once in a pass.
    Options beyond the RFC's: group, and those of LayerInputs.
    """
    last_group: list[weakref.ref[SwapGroupOfLayers]] = []

    def group_now() -> SwapGroupOfLayers:
        if group is not None:
            return group
        found = last_group[0]() if last_group else None
        if found is None:
            found = SwapGroupOfLayers(module_tag=module_tag, prefetch=int(prefetch), **options)
            last_group[:] = [weakref.ref(found)]
        return found

    @functools.wraps(fn)
    def wrapper(self, *args: Any, **kwargs: Any) -> Any:
        result = fn(self, *args, **kwargs)
        if getattr(self, "is_mtp", False) or getattr(self, "is_mtp_layer", False):
            self.swap_manager = None
        elif getattr(self, "swap_manager", None) is None:
            self.swap_manager = SwapLayerInputManager(
                custom_check_fn=custom_check_fn, group=group_now()
            )
        return result

    return wrapper


def swap_layer_input_forward_wrapper(fn: Callable) -> Callable:
    """Wraps a layer's forward under an ordinary recompute function.

    Without grad and with a hidden_states that requires grad it is the first run: the input goes
    out, and former ones are let go of. With grad and a hidden_states that is out it is the second:
    the wait is here, before anything reads it. Else (evaluation, no recompute, a block's inner
    layers) nothing is swapped. hidden_states is the keyword or the first argument; one that is no
    tensor, a layer without swap_manager, and a tensor with swap_this_tensor = False run as before.
    """

    @functools.wraps(fn)
    def wrapper(self, *args: Any, **kwargs: Any) -> Any:
        hidden_states = _hidden_states(args, kwargs)
        manager = _manager(self)
        if manager is None or hidden_states is None:
            return fn(self, *args, **kwargs)
        if torch.is_grad_enabled():
            manager.begin_backward(hidden_states)
            return fn(self, *args, **kwargs)
        swaps = hidden_states.requires_grad and _is_marked(hidden_states)
        with _Forward(manager if swaps else None, hidden_states):
            return fn(self, *args, **kwargs)

    return wrapper


def swap_layer_input_fboverlap_forward_wrapper(fn: Callable) -> Callable:
    """Wraps a layer's forward in forward-backward overlap: with `checkpoint` true, by keyword or
    position, the input goes out, and is let go of when the layer has run."""
    checkpoint = _argument(fn, "checkpoint")

    @functools.wraps(fn)
    def wrapper(self, *args: Any, **kwargs: Any) -> Any:
        hidden_states = _hidden_states(args, kwargs)
        manager = _manager(self)
        swaps = (
            manager is not None
            and hidden_states is not None
            and bool(checkpoint((self, *args), kwargs))
            and _is_marked(hidden_states)
        )
        with _Forward(manager if swaps else None, hidden_states, lets_go=True):
            return fn(self, *args, **kwargs)

    return wrapper


def swap_layer_input_fboverlap_1f1b_wrapper(fn: Callable) -> Callable:
    """Wraps one layer's forward that runs together with another's backward.

    The backward's layer is `bwd_layer_graph`: the keyword, or the fourth argument after the layer
    where that is a layer graph (it has .layer and .layer_input); none is allowed, and so is a layer
    without swap_manager on either side. The backward's input is there when fn starts; the one
    before it comes in meanwhile and is there when it ends. The forward's goes out as above.
    """
    checkpoint = _argument(fn, "checkpoint")

    @functools.wraps(fn)
    def wrapper(self, *args: Any, **kwargs: Any) -> Any:
        hidden_states = _hidden_states(args, kwargs)
        graph = kwargs.get("bwd_layer_graph", args[3] if len(args) > 3 else None)
        manager = _manager(self)
        swaps = (
            manager is not None
            and hidden_states is not None
            and bool(checkpoint((self, *args), kwargs))
            and _is_marked(hidden_states)
        )

        def run() -> Any:
            with _Forward(manager if swaps else None, hidden_states, lets_go=True):
                return fn(self, *args, **kwargs)

        return _with_input_back(graph, run)

    return wrapper


def swap_layer_input_fboverlap_backward_wrapper(fn: Callable) -> Callable:
    """Wraps a layer's backward (with its recompute) in forward-backward overlap. The layer graph is
    the second argument, or the keyword layer_graph. Its input is there when fn starts; the one
    before it is there when it ends."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        graph = kwargs.get("layer_graph", args[1] if len(args) > 1 else None)
        return _with_input_back(graph, lambda: fn(*args, **kwargs))

    return wrapper


def _manager(layer: Any) -> SwapLayerInputManager | None:
    return getattr(layer, "swap_manager", None)


def _hidden_states(args: tuple, kwargs: dict) -> torch.Tensor | None:
    found = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0] if args else None
    return found if isinstance(found, torch.Tensor) else None


def _is_marked(hidden_states: torch.Tensor) -> bool:
    """The RFC's mark, put on by whoever comes first: False keeps the tensor on the device."""
    if not hasattr(hidden_states, "swap_this_tensor"):
        hidden_states.swap_this_tensor = True
    return bool(hidden_states.swap_this_tensor)


def _argument(fn: Callable, name: str) -> Callable[[tuple, dict], Any]:
    """How to read an argument of fn, given by position or by keyword, with its default."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    place = next((i for i, p in enumerate(parameters) if p.name == name), None)
    has_place = place is not None and parameters[place].kind is not inspect.Parameter.KEYWORD_ONLY
    default = parameters[place].default if place is not None else None
    default = None if default is inspect.Parameter.empty else default

    def read(args: tuple, kwargs: dict) -> Any:
        if name in kwargs:
            return kwargs[name]
        return args[place] if has_place and place < len(args) else default

    return read


class _Forward:
    """A forward whose input goes out: if it raises, the input is back."""

    def __init__(
        self,
        manager: SwapLayerInputManager | None,
        hidden_states: torch.Tensor | None,
        lets_go: bool = False,
    ) -> None:
        self._manager = manager
        self._hidden_states = hidden_states
        self._lets_go = lets_go

    def __enter__(self) -> None:
        if self._manager is not None and not self._manager.begin_forward(self._hidden_states):
            self._manager = None

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if self._manager is None:
            return
        if error_type is not None:
            self._manager.cancel_forward(self._hidden_states)
        elif self._lets_go:
            self._manager.end_forward(self._hidden_states)


def _with_input_back(graph: Any, run: Callable[[], Any]) -> Any:
    manager = _manager(getattr(graph, "layer", None))
    layer_input = getattr(graph, "layer_input", None)
    if manager is None or not isinstance(layer_input, torch.Tensor):
        return run()
    manager.begin_backward(layer_input)
    result = run()
    manager.end_backward()
    return result
