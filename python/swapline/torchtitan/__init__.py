"""Swapline in torchtitan: optimizers with swapped states, recomputed layers with swapped inputs.

Which form it takes follows from what is installed:

    torchtitan 0.2  --job.custom_config_module swapline.torchtitan
                    gives the sections [optimizer] and [swap_layer_input] their fields: JobConfig
    torchtitan 0.3  --override.imports swapline.torchtitan.overrides.swap_optimizer
                    swapline.torchtitan.overrides.swap_layer_input

Nothing of torchtitan is patched: the first registers train specs, the second overrides of configs,
as torchtitan's own extensions do. docs/use_with_torchtitan.md has both in full.
"""

import importlib.metadata
import importlib.util

SUPPORTED = "0.2.x (0.2.2 is tested) and 0.3.x (0.3.0 is tested)"


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package that it is in
        return False


def _installed_api() -> str:
    # By what is there rather than by number: a checkout of its sources may carry none.
    if _exists("torchtitan.config.override"):
        return "override"
    if _exists("torchtitan.protocols.train_spec"):
        return "train_spec"
    try:
        found = f"torchtitan {importlib.metadata.version('torchtitan')}"
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            f"swapline.torchtitan needs torchtitan, which is not installed; supported: {SUPPORTED}"
        ) from None
    raise ImportError(f"swapline.torchtitan does not know {found}; supported: {SUPPORTED}")


if _installed_api() == "override":
    from swapline.torchtitan.overrides import (
        SwapFullAC,
        SwapOptimizersContainer,
        SwapSelectiveAC,
        swap_layer_input,
        swap_optimizer,
    )

    __all__ = [
        "SwapFullAC",
        "SwapOptimizersContainer",
        "SwapSelectiveAC",
        "swap_layer_input",
        "swap_optimizer",
    ]
else:
    from swapline.torchtitan.train_specs import (
        JobConfig,
        Optimizer,
        SwapLayerInput,
        build_optimizers,
        register,
        with_swap,
    )

    __all__ = [
        "JobConfig",
        "Optimizer",
        "SwapLayerInput",
        "build_optimizers",
        "register",
        "with_swap",
    ]
