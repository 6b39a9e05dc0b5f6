"""The options that both forms have, for the optimizer and for layer inputs."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(kw_only=True)
class SwapOptimizerFields:
    swap_optimizer: bool = False
    """Optimizer states live in pinned host memory and stream through the device in step()."""

    swap_optimizer_times: int = 16
    """step() holds at most all states / this number on the device. Larger: a lower peak."""

    swap_optimizer_arena_bytes: int = 0
    """The same bound in bytes; 0: none."""

    swap_optimizer_fraction: float = 1.0
    """The share of the states that is swapped; the rest stays on the device."""

    virtual_optimizer: bool = False
    """States are mapped: the update reads and writes them in host memory, with no device memory."""

    virtual_optimizer_size: str | None = None
    """GiB of states that are mapped, e.g. "10"; a list has one for each pipeline rank, "10,5";
    "all", which is the default. What goes beyond stays on the device."""


def optimizer_options(config: Any, pipeline_rank: int, pipeline_degree: int) -> dict[str, Any]:
    """Of any config that has SwapOptimizerFields' fields. Throws ValueError for contradictions."""
    if config.swap_optimizer and config.virtual_optimizer:
        raise ValueError(
            "swap_optimizer and virtual_optimizer are two ways to place the same states: turn "
            "one off"
        )
    if config.virtual_optimizer_size is not None and not config.virtual_optimizer:
        raise ValueError(
            f"virtual_optimizer_size is {config.virtual_optimizer_size!r} and virtual_optimizer is "
            "off: turn it on, or leave the size out"
        )
    if config.virtual_optimizer:
        size = config.virtual_optimizer_size
        sizes = parse_virtual_size("all" if size is None else size, pipeline_degree)
        return {"placement": "device", "virtual_optimizer_size": sizes[pipeline_rank]}
    if not config.swap_optimizer:
        return {"placement": "device"}
    return {
        "placement": "swap",
        "swap_optimizer_times": config.swap_optimizer_times,
        "swap_optimizer_arena_bytes": config.swap_optimizer_arena_bytes,
        "swap_optimizer_fraction": config.swap_optimizer_fraction,
    }


def parse_virtual_size(size: Any, pipeline_degree: int) -> list[float | str]:
    """GiB, or "all", for each pipeline rank, from "10", "10,5", "all", a number or a list of
    them."""
    parts = size if isinstance(size, (list, tuple)) else str(size).split(",")
    sizes: list[float | str] = []
    for part in parts:
        text = str(part).strip()
        try:
            sizes.append("all" if text == "all" else float(text))
        except ValueError:
            raise ValueError(
                f'virtual_optimizer_size must be GiB, a list of them or "all", got {size!r}'
            ) from None
        if sizes[-1] != "all" and not 0 <= sizes[-1] < float("inf"):
            raise ValueError(f"virtual_optimizer_size must be at least 0 GiB, got {size!r}")
    if len(sizes) == 1:
        return sizes * pipeline_degree
    if len(sizes) != pipeline_degree:
        raise ValueError(
            f"virtual_optimizer_size has {len(sizes)} sizes, {size!r}, and the pipeline has "
            f"{pipeline_degree} ranks: give one for each, or one for all"
        )
    return sizes


@dataclasses.dataclass(kw_only=True)
class SwapLayerInputFields:
    keep_last: int | Literal["auto"] = "auto"
    """Inputs of the last so many layers stay on the device; auto: as the order of passes allows."""

    prefetch: int = 1
    """Layers ahead that inputs are brought back in backward."""

    max_swapping_out: int | Literal["auto"] = "auto"
    """Inputs that may outlive their layer while they are copied out; auto: learned, 1: strict."""

    min_bytes: int = 0
    """Smaller inputs stay on the device."""

    max_host_bytes: int = 0
    """Most bytes of inputs in host memory; 0: no limit."""


def layer_input_options(config: Any) -> dict[str, Any]:
    """SwapLayerInputs' options of any config that has SwapLayerInputFields' fields."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(SwapLayerInputFields)
    }
