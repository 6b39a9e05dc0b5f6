"""For torchtitan 0.2: a JobConfig with Swapline's fields, and train specs that honour them.

torchtitan merges the JobConfig into its own (--job.custom_config_module) and takes a registered
train spec before one of its models. Importing this registers one for each of its models.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch import nn
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.models import _supported_models  # the models' names; there is no public list
from torchtitan.protocols import train_spec as protocol
from torchtitan.tools.logging import logger

from swapline import optim
from swapline.torchtitan.fields import (
    SwapLayerInputFields,
    SwapOptimizerFields,
    layer_input_options,
    optimizer_options,
)
from swapline.torchtitan.muon import MuonFields, build_muon
from swapline.torchtitan.recompute import swap_inputs_of


@dataclasses.dataclass
class Optimizer(SwapOptimizerFields, MuonFields):
    """Beside torchtitan's own fields; name may also be Muon."""


@dataclasses.dataclass
class SwapLayerInput(SwapLayerInputFields):
    enable: bool = False
    """The inputs of recomputed layers wait for their backward in pinned host memory."""


@dataclasses.dataclass
class JobConfig:
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    swap_layer_input: SwapLayerInput = dataclasses.field(default_factory=SwapLayerInput)


def build_optimizers(
    build: Callable[..., OptimizersContainer],
    model_parts: list[nn.Module],
    optimizer_config: Any,
    parallel_dims: Any,
    ft_manager: Any = None,
) -> OptimizersContainer:
    """`build`'s container, with its hooks, around Swapline's optimizers where the config asks for
    them.

    Throws ValueError for contradictions between the fields, NotImplementedError for optimizers
    other than Adam, AdamW and Muon and for early_step_in_backward.
    """
    config = optimizer_config
    if not hasattr(config, "swap_optimizer"):
        logger.warning(
            "Nothing is swapped: add --job.custom_config_module swapline.torchtitan for its options"
        )
        return build(model_parts, config, parallel_dims, ft_manager)
    rank = parallel_dims.get_mesh("pp").get_local_rank() if parallel_dims.pp_enabled else 0
    options = optimizer_options(config, rank, parallel_dims.pp)
    if config.name != "Muon" and not (config.swap_optimizer or config.virtual_optimizer):
        return build(model_parts, config, parallel_dims, ft_manager)
    if config.name not in ("Adam", "AdamW", "Muon"):
        raise NotImplementedError(
            f"swap_optimizer works with Adam, AdamW and Muon, not with {config.name}"
        )
    if config.early_step_in_backward:
        raise NotImplementedError(
            "early_step_in_backward updates each parameter by itself, so there is nothing to "
            "stream: turn it off, or swap_optimizer"
        )
    if ft_manager is not None and ft_manager.enabled:
        raise NotImplementedError(
            "fault_tolerance keeps states on the device: turn one of both off"
        )

    # Its optimizers have no states yet, and its hooks are the container's.
    stock = dataclasses.replace(config, name="AdamW") if config.name == "Muon" else config
    container = build(model_parts, stock, parallel_dims, ft_manager)
    if config.name == "Muon":
        container.optimizers = [build_muon(part, config, options) for part in model_parts]
    else:
        kind = {"Adam": optim.Adam, "AdamW": optim.AdamW}[config.name]
        container.optimizers = [
            kind(
                stock_optimizer.param_groups[0]["params"],
                lr=config.lr,
                betas=(config.beta1, config.beta2),
                eps=config.eps,
                weight_decay=config.weight_decay,
                fused=config.implementation == "fused",
                foreach=config.implementation == "foreach",
                **options,
            )
            for stock_optimizer in container.optimizers
        ]
    return container


def _parallelize(
    parallelize: Callable[..., nn.Module], model: nn.Module, parallel_dims: Any, job_config: Any
) -> nn.Module:
    section = getattr(job_config, "swap_layer_input", None)
    if section is None or not section.enable:
        return parallelize(model, parallel_dims, job_config)
    mode = job_config.activation_checkpoint.mode
    if mode not in ("full", "selective"):
        raise ValueError(
            f"swap_layer_input.enable needs layers that are recomputed, and "
            f"activation_checkpoint.mode is {mode}: set it to full or selective, or turn "
            "swap_layer_input.enable off"
        )
    if job_config.compile.enable and "model" in job_config.compile.components:
        raise ValueError(
            "swap_layer_input.enable does not see inside compiled layers: turn compile.enable "
            "off, or leave model out of compile.components"
        )
    model = parallelize(model, parallel_dims, job_config)
    swap_inputs_of(model, layer_input_options(section))
    return model


def with_swap(spec: protocol.TrainSpec) -> protocol.TrainSpec:
    """A train spec that honours Swapline's fields and is `spec` in all else. For models of one's
    own:

    register_train_spec("mine", with_swap(TrainSpec(...)))
    """
    if getattr(spec.build_optimizers_fn, "func", None) is build_optimizers:
        raise ValueError("the train spec has been through with_swap() before: use it as it is")
    return dataclasses.replace(
        spec,
        build_optimizers_fn=functools.partial(build_optimizers, spec.build_optimizers_fn),
        parallelize_fn=functools.partial(_parallelize, spec.parallelize_fn),
    )


def register() -> list[str]:
    """Registers a train spec for each of torchtitan's models; returns their names. Models that
    cannot be imported here (they need packages of their own) and names taken already are left
    out."""
    registered = []
    for name in sorted(_supported_models):
        try:
            spec = importlib.import_module(f"torchtitan.models.{name}").get_train_spec()
        except ImportError as error:
            logger.debug(f"swapline.torchtitan leaves out {name}: {error}")
            continue
        try:
            protocol.register_train_spec(name, with_swap(spec))
        except ValueError:
            logger.warning(
                f"swapline.torchtitan leaves out {name}: a train spec is registered for it"
            )
            continue
        registered.append(name)
    return registered


register()
