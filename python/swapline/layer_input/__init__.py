"""Layer inputs in pinned host memory between forward and backward.

recompute, LayerInputs    a recompute function with swap built in
SwapLayerInputs           for models that recompute already, as a context manager
swap_layer_input_*        the RFC's five decorators, for frameworks that save inputs by themselves,
                          and its classes: SwapTensors, SwapLayerInputManager, is_valid_for_swap

Results are those of a run without swap, bit for bit. See docs/layer_input_guide.md.
"""

from swapline._core import SavedInput
from swapline.layer_input.find_layers import find_layers
from swapline.layer_input.inputs import LayerInputs, recompute
from swapline.layer_input.manager import (
    SwapGroupOfLayers,
    SwapLayerInputManager,
    SwapTensors,
    is_valid_for_swap,
)
from swapline.layer_input.swapped_model import SwapLayerInputs
from swapline.layer_input.wrappers import (
    swap_layer_input_fboverlap_1f1b_wrapper,
    swap_layer_input_fboverlap_backward_wrapper,
    swap_layer_input_fboverlap_forward_wrapper,
    swap_layer_input_forward_wrapper,
    swap_layer_input_init_wrapper,
)

__all__ = [
    "LayerInputs",
    "SavedInput",
    "SwapGroupOfLayers",
    "SwapLayerInputManager",
    "SwapLayerInputs",
    "SwapTensors",
    "find_layers",
    "is_valid_for_swap",
    "recompute",
    "swap_layer_input_fboverlap_1f1b_wrapper",
    "swap_layer_input_fboverlap_backward_wrapper",
    "swap_layer_input_fboverlap_forward_wrapper",
    "swap_layer_input_forward_wrapper",
    "swap_layer_input_init_wrapper",
]
