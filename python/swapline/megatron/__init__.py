"""Swapline in Megatron-LM and MindSpeed: layer inputs and optimizer states in host memory.

    # Knows --swap-layer-input, --swap-optimizer, --swap-optimizer-times.
    pretrain(..., extra_args_provider=swapline.megatron.add_swap_arguments)
    swapline.megatron.apply(args)  # before the model is built

or, without arguments, wrap_transformer_layer(TransformerLayer) and swap_optimizer(optimizer).
docs/use_with_megatron.md has it in full, and MindSpeed's names beside these.
"""

from swapline.megatron.arguments import add_swap_arguments
from swapline.megatron.layers import wrap_transformer_layer
from swapline.megatron.optimizer import swap_optimizer
from swapline.megatron.placement import Applied, apply

__all__ = [
    "Applied",
    "add_swap_arguments",
    "apply",
    "swap_optimizer",
    "wrap_transformer_layer",
]
