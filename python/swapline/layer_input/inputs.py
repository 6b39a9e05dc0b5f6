"""recompute with layer-input swap built in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

# torch's pytrees have no public name in all the versions that are supported.
from torch.utils._pytree import tree_flatten, tree_unflatten

from swapline import _core
from swapline.layer_input.options import Check, make_context, make_options


class LayerInputs:
    """One model's layers on one device, whose inputs are swapped between forward and backward.

    `context_or_device`: a SwapContext, which several may share, or a device; may be None with
    enabled=False. Options, all by keyword:

    enabled=True             False: the same recompute, inputs stay on the device
    preserve_rng_state=True  dropout draws the same numbers when the layer runs again
    module_tag="layer"       named in errors and in the log
    custom_check=None        called with each input; False: it stays on the device
    num_layers=0             layers in a pass; 0: unknown, then keep_last has no effect
    keep_last="auto"         inputs of the last so many layers stay: they are needed at once
    prefetch=1               layers ahead that inputs are brought back in backward
    prefetch_bytes=0         most bytes brought back ahead; 0: no limit
    max_swapping_out="auto"  inputs still on their way out that may outlive their layer; 1: strict
    min_bytes=0              smaller inputs stay
    max_host_bytes=0         most bytes in host memory at once; 0: no limit

    docs/layer_input_guide.md says how to choose. An option that is out of range raises an error
    that names it. Forward and backward may run on different threads, one at a time.
    """

    def __init__(self, context_or_device, *, custom_check: Check | None = None, **options) -> None:
        made = make_options(options)
        context = None
        if context_or_device is not None:
            context = make_context(context_or_device) if made.enabled else None
        self._engine = _core.LayerInputs(context, made, custom_check)

    def recompute(
        self, function: Callable, hidden_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """function(hidden_states, *args, **kwargs), run again in backward from an input that was on
        the host in between.

        function: a Module or any callable; it must do the same each time. Tensors anywhere in
        `args` and `kwargs` stay on the device and get their gradients; what else is in there is
        passed on as it is. Returns what `function` returns: a tensor, or tuples, lists and dicts of
        tensors and other things. Random numbers and autocast are those of the first run.

        Without a backward to come (grad mode off, nothing requires grad) it is a plain call.
        What `function` raises comes out as it is, also in backward. Not supported, with an error
        that says so: double backward, torch.autograd.grad, backward(inputs=...).
        """
        if not isinstance(hidden_states, torch.Tensor):
            raise TypeError(
                "recompute: hidden_states, its first argument after the function, is a "
                f"{type(hidden_states).__name__}; it must be a tensor"
            )
        call = _Call(function)
        others = call.take_arguments(args, kwargs) if args or kwargs else []
        return call.result_of(self._engine.recompute(call, hidden_states, others))

    def save(
        self, hidden_states: torch.Tensor, before: _core.SavedInput | None = None
    ) -> _core.SavedInput:
        """A layer's input for a schedule that runs forward, recompute and backward piece by piece.

        Call it when the layer begins its forward. `before`: the input of the layer before in the
        same pass, or None. On what is returned: layer_done() when the layer's forward is over,
        take() -> tensor when its backward begins (the current stream waits for it exactly there),
        finish() when that is over and the tensor let go of.
        """
        return self._engine.save(hidden_states, before)

    def begin_microbatch(self, id: int) -> None:
        """Names the pass that follows, for the two calls below. With chunks name each chunk's."""
        self._engine.begin_microbatch(id)

    def prefetch(self, microbatch: int) -> None:
        """Brings back the last input of that pass: call it one slot ahead of its backward. A hint:
        a wrong or missing one costs time, never correctness."""
        self._engine.prefetch(microbatch)

    def recompute_ahead(self, microbatch: int) -> None:
        """Runs the last layer of that pass again now, in a bubble; its backward uses what it made.

        Raises RuntimeError inside a backward, and what the layer raises."""
        self._engine.recompute_ahead(microbatch)

    @property
    def context(self) -> _core.SwapContext | None:
        return self._engine.context

    def stats(self) -> dict[str, int | float]:
        """Counts since the last reset; bytes and ms. Waits for the device when the context was made
        with timing=True."""
        return self._engine.stats()

    def reset_stats(self) -> None:
        self._engine.reset_stats()


def recompute(
    function: Callable, hidden_states: torch.Tensor, *args: Any, inputs: LayerInputs, **kwargs: Any
) -> Any:
    """In place of torch.utils.checkpoint.checkpoint: see LayerInputs.recompute."""
    return inputs.recompute(function, hidden_states, *args, **kwargs)


class _Call:
    """One call of recompute: its arguments and results without their tensors, which the engine
    keeps, and how they are put together again."""

    __slots__ = ("function", "leaves", "places", "result_spec", "results", "spec")

    def __init__(self, function: Callable) -> None:
        self.function = function
        self.spec = None
        self.results: list | None = None
        self.result_spec = None

    def take_arguments(self, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        self.leaves, self.spec = tree_flatten((args, kwargs))
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [self.leaves[i] for i in self.places]
        for i in self.places:
            self.leaves[i] = None
        return tensors

    def __call__(
        self, hidden_states: torch.Tensor, others: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        if self.spec is None:
            result = self.function(hidden_states)
        else:
            leaves = list(self.leaves)
            for i, other in zip(self.places, others):
                leaves[i] = other
            args, kwargs = tree_unflatten(leaves, self.spec)
            result = self.function(hidden_states, *args, **kwargs)
        return [result] if isinstance(result, torch.Tensor) else self._take_results(result)

    def _take_results(self, result: Any) -> list[torch.Tensor]:
        leaves, spec = tree_flatten(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if self.results is None:
            for leaf in leaves:
                if dataclasses.is_dataclass(leaf):
                    raise TypeError(
                        f"recompute: the layer returned a {type(leaf).__name__}, whose tensors "
                        "would have no gradient; return tensors in tuples, lists or dicts"
                    )
            # Tensors leave a hole that the engine's outputs fill.
            self.results = [_HOLE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            self.result_spec = spec
        return tensors

    def result_of(self, tensors: list[torch.Tensor]) -> Any:
        if self.results is None:
            return tensors[0]
        filled = iter(tensors)
        leaves = [next(filled) if leaf is _HOLE else leaf for leaf in self.results]
        return tree_unflatten(leaves, self.result_spec)


_HOLE = object()
