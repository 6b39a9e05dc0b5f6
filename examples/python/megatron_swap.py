"""A Megatron model whose layer inputs and optimizer states are swapped, as its options ask for."""

# [megatron
import argparse
from collections.abc import Callable
from typing import Any

import megatron.core.optimizer as megatron_optimizer
import torch

import swapline.megatron


def build(
    words: list[str],
    build_model: Callable[[], torch.nn.Module],
    config: megatron_optimizer.OptimizerConfig,
) -> tuple[torch.nn.Module, Any, swapline.megatron.Applied]:
    # In Megatron-LM: pretrain(..., extra_args_provider=swapline.megatron.add_swap_arguments)
    parser = swapline.megatron.add_swap_arguments(argparse.ArgumentParser())
    args = parser.parse_args(words)  # e.g. --swap-layer-input --swap-optimizer

    applied = swapline.megatron.apply(args)  # before the model; holds until applied.undo()
    model = build_model()  # a GPTModel in a DistributedDataParallel, on its device
    optimizer = megatron_optimizer.get_megatron_optimizer(config, [model])
    return model, optimizer, applied


# megatron]
