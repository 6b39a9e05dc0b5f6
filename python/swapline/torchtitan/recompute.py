"""Layer-input swap for the layers that torchtitan has wrapped in its recompute."""

from typing import Any

from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from swapline.layer_input import SwapLayerInputs


class _AttachedLayerInputs(SwapLayerInputs):
    """SwapLayerInputs that lives as long as its model, without a `with` block.

    The layers' hooks stay on. The hooks on saved tensors, of which a thread has one at a time, are
    in force while the model's forward runs: so each part of a pipeline can have its own.
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.__enter__()
        self._hooks.__exit__(None, None, None)
        self._forwards: list[saved_tensors_hooks] = []
        model.register_forward_pre_hook(self._begin_forward, prepend=True)
        model.register_forward_hook(self._end_forward, always_call=True)

    def _begin_forward(self, *_: Any) -> None:
        hooks = saved_tensors_hooks(self._saved.pack_hook, self._saved.unpack_hook)
        hooks.__enter__()
        self._forwards.append(hooks)

    def _end_forward(self, *_: Any) -> None:
        if self._forwards:
            self._forwards.pop().__exit__(None, None, None)


def swap_inputs_of(model: nn.Module, options: dict[str, Any]) -> SwapLayerInputs:
    """Swaps the inputs of a model's recomputed layers from now on.

    options: SwapLayerInputs'. Figures are in `model.swap_layer_inputs.stats()`, which is also what
    is returned. Throws ValueError where it was called for this model before.
    """
    if hasattr(model, "swap_layer_inputs"):
        raise ValueError(
            f"{type(model).__name__} swaps its layers' inputs already: ask for it once"
        )
    inputs = _AttachedLayerInputs(
        model, layers=list(model.get_submodule("layers").children()), **options
    )
    model.swap_layer_inputs = inputs
    return inputs
