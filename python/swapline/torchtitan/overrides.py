"""For torchtitan 0.3: overrides of its optimizers and of its recompute policies.

--override.imports swapline.torchtitan.overrides.swap_optimizer
--override.imports 'swapline.torchtitan.overrides.swap_optimizer={"swap_optimizer_times": 32}'
--override.imports swapline.torchtitan.overrides.swap_layer_input
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config.override import derive, override
from torchtitan.distributed.activation_checkpoint import (
    ActivationCheckpointing,
    FullAC,
    SelectiveAC,
)

from swapline import optim
from swapline.torchtitan.fields import (
    SwapLayerInputFields,
    SwapOptimizerFields,
    layer_input_options,
    optimizer_options,
)
from swapline.torchtitan.recompute import swap_inputs_of


def _pipeline_place(size: Any) -> tuple[int, int]:
    """This process's pipeline rank and how many there are, from a list with a size for each.

    The container is not told its mesh; the pipeline is the outermost dimension of torchtitan's.
    """
    degree = len(str(size).split(",")) if not isinstance(size, (list, tuple)) else len(size)
    if degree == 1 or not torch.distributed.is_initialized():
        return 0, degree
    world_size = torch.distributed.get_world_size()
    if world_size % degree != 0:
        raise ValueError(
            f"virtual_optimizer_size has {degree} sizes, {size!r}, which {world_size} processes "
            "cannot be divided by: give one for each pipeline rank, or one for all"
        )
    return torch.distributed.get_rank() // (world_size // degree), degree


class SwapOptimizersContainer(OptimizersContainer):
    """OptimizersContainer whose Adam, AdamW and Muon keep their states in host memory.

    Muon is an optimizer_name of its own in param_groups, with torch.optim.Muon's keyword arguments.
    With swap_optimizer and virtual_optimizer off it is torchtitan's container, Muon apart.
    """

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config, SwapOptimizerFields):
        pass

    def __init__(self, config: Config, *, model_parts: list[nn.Module]) -> None:
        rank, degree = _pipeline_place(config.virtual_optimizer_size)
        self._swap_options = optimizer_options(config, rank, degree)
        self._is_on = config.swap_optimizer or config.virtual_optimizer
        if self._is_on and config.implementation == "fused_opt_states_bf16":
            # torchtitan does this by a hook on stock optimizers.
            self._swap_options["state_dtype"] = torch.bfloat16
        super().__init__(config, model_parts=model_parts)

    def _resolve_optimizer_factory(self, name: str) -> Callable[..., torch.optim.Optimizer]:
        if name == "Muon":
            return functools.partial(_make_muon, self._swap_options)
        if not self._is_on:
            return OptimizersContainer._resolve_optimizer_factory(name)
        kinds = {"Adam": optim.Adam, "AdamW": optim.AdamW}
        if name not in kinds:
            raise NotImplementedError(
                f"swap_optimizer works with Adam, AdamW and Muon, not with {name}: leave "
                "swap_optimizer off, or change optimizer_name"
            )
        return functools.partial(_make_adam, kinds[name], self._swap_options)


def _make_adam(
    kind: type[torch.optim.Optimizer],
    swap_options: dict[str, Any],
    groups: list[dict],
    **kwargs: Any,
) -> torch.optim.Optimizer:
    # The kernel is chosen for the optimizer, and torchtitan says it in each group.
    kernel = {name: groups[0].get(name) for name in ("fused", "foreach")}
    return kind(groups, **kernel, **kwargs, **swap_options)


def _make_muon(swap_options: dict[str, Any], groups: list[dict], **kwargs: Any) -> optim.Muon:
    # Adam's choice of kernels, which torchtitan gives to every group.
    for group in groups:
        group.pop("fused", None)
        group.pop("foreach", None)
    return optim.Muon(groups, **kwargs, **swap_options)


@override(
    target=OptimizersContainer.Config,
    description="Optimizer states in pinned host memory (Swapline)",
)
def swap_optimizer(config: OptimizersContainer.Config, **fields: Any) -> OptimizersContainer.Config:
    """`fields`: SwapOptimizerFields'. With none, swap_optimizer is on."""
    if "swap_optimizer" not in fields and not fields.get("virtual_optimizer"):
        fields["swap_optimizer"] = True
    return derive(config, SwapOptimizersContainer.Config, **fields)


class SwapFullAC(FullAC):
    """FullAC whose layers' inputs wait for their backward in pinned host memory."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config, SwapLayerInputFields):
        pass

    def apply(self, model: nn.Module) -> None:
        super().apply(model)
        swap_inputs_of(model, layer_input_options(self.config))


class SwapSelectiveAC(SelectiveAC):
    """SelectiveAC whose layers' inputs wait for their backward in pinned host memory. What it saves
    beside them stays on the device."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config, SwapLayerInputFields):
        pass

    def apply(self, model: nn.Module) -> None:
        super().apply(model)
        swap_inputs_of(model, layer_input_options(self.config))


@override(
    target=ActivationCheckpointing.Config,
    description="Inputs of recomputed layers in pinned host memory (Swapline)",
)
def swap_layer_input(
    config: ActivationCheckpointing.Config, **fields: Any
) -> ActivationCheckpointing.Config:
    """`fields`: SwapLayerInputFields'."""
    if isinstance(config, (SwapFullAC.Config, SwapSelectiveAC.Config)):
        raise ValueError(  # noqa: TRY004
            "the recompute policy swaps its layers' inputs already: list this once"
        )
    for kind, swapping in ((FullAC, SwapFullAC), (SelectiveAC, SwapSelectiveAC)):
        if isinstance(config, kind.Config):
            return derive(config, swapping.Config, **fields)
    raise TypeError(
        f"swap_layer_input needs layers that are recomputed one by one, and "
        f"activation_checkpoint is {type(config).__qualname__}: choose activation-checkpoint:full "
        "or :selective"
    )
