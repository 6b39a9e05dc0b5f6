"""Megatron's optimizers with swapped states: its wrappers stay, Swapline does their updates."""

from collections.abc import Iterator
from typing import Any

import torch

from swapline import optim
from swapline.optim.base import SwapOptimizer


def swap_optimizer(
    megatron_optimizer: Any, *, times: int = 16, fused: bool = False, **options: Any
) -> Any:
    """Moves the states of what get_megatron_optimizer() returned to pinned host memory; returns it.

    FP32Optimizer, Float16OptimizerWithFloat16Params, DistributedOptimizer and ChainedOptimizer over
    torch.optim.AdamW or Adam. Call it before the first step and before a checkpoint is loaded.
    Parameters that Megatron keeps in fp32 beside its half ones stay on the device.

    times: swap_optimizer_times; options: those of swapline.optim.AdamW.
    fused: False: the bits of Megatron's own optimizer, which does not ask torch for its fused
        kernel; True: the fused kernel, fewer launches and other last bits.
    Throws, with nothing changed, TypeError for optimizers of another kind (Transformer Engine's and
    Apex's, SGD), ValueError for ones swapped already or with states.
    """
    stock = list(_wrappers(megatron_optimizer))
    for wrapper in stock:
        _check(wrapper.optimizer)
    made = [_swapping(wrapper.optimizer, fused, times, options) for wrapper in stock]
    for wrapper, optimizer in zip(stock, made):
        wrapper.optimizer = optimizer
        wrapper.init_state_fn = _init_states
    return megatron_optimizer


def _wrappers(megatron_optimizer: Any) -> Iterator[Any]:
    """The wrappers that hold a torch optimizer. One without parameters holds none."""
    for wrapper in getattr(megatron_optimizer, "chained_optimizers", [megatron_optimizer]):
        if not hasattr(wrapper, "optimizer"):
            raise ValueError(
                f"{type(wrapper).__qualname__} is no optimizer of Megatron's: give what "
                "get_megatron_optimizer() returned"
            )
        if wrapper.optimizer is not None:
            yield wrapper


def _check(optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, SwapOptimizer):
        raise ValueError(  # noqa: TRY004
            "the optimizer's states are swapped already: call swap_optimizer() once"
        )
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        raise TypeError(
            f"swap_optimizer works with torch.optim.Adam and AdamW, not with "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}; where Transformer "
            "Engine or Apex are installed Megatron takes theirs"
        )
    if any(optimizer.state.values()):
        raise ValueError("the optimizer has states already: swap it before the first step")
    if not all(p.is_leaf for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            "--use-distributed-optimizer updates views of fp32 parameters, which have no states "
            "that could be swapped: train in bf16 or fp16, or leave one of the two out"
        )


def _swapping(
    optimizer: torch.optim.Optimizer, fused: bool, times: int, options: dict[str, Any]
) -> SwapOptimizer:
    kind = optim.AdamW if isinstance(optimizer, torch.optim.AdamW) else optim.Adam
    defaults = {
        name: optimizer.defaults[name]
        for name in ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")
    }
    # The groups themselves, with Megatron's own entries: its schedulers may hold them.
    groups = optimizer.param_groups
    return kind(groups, fused=fused, swap_optimizer_times=times, **defaults, **options)


def _init_states(optimizer: SwapOptimizer, config: Any = None) -> None:
    """Megatron asks for states before it loads a checkpoint. Zeros on the host, without a step."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            state = optimizer.state[param]
            if not state:
                state["exp_avg"] = torch.zeros_like(param, device="cpu")
                state["exp_avg_sq"] = torch.zeros_like(param, device="cpu")
