"""The options, under MindSpeed's names."""

import argparse
from typing import Any


def add_swap_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds Swapline's options to Megatron's parser and returns it: an extra_args_provider.

    Throws ValueError when the parser knows one of them already, as MindSpeed's does.
    """
    group = parser.add_argument_group(title="swapline")
    try:
        group.add_argument(
            "--swap-layer-input",
            action="store_true",
            help="The inputs of recomputed layers wait for their backward in pinned host memory.",
        )
        group.add_argument(
            "--swap-optimizer",
            action="store_true",
            help="Optimizer states live in pinned host memory and stream through the device in "
            "step().",
        )
        group.add_argument(
            "--swap-optimizer-times",
            type=int,
            default=16,
            help="step() holds at most all states / this number on the device. Default: 16.",
        )
    except argparse.ArgumentError as error:
        raise ValueError(
            f"{error}: the option is registered already, by MindSpeed or an earlier "
            "add_swap_arguments(); leave one of the two out"
        ) from None
    return parser


def check(args: Any) -> None:
    """Throws ValueError for what cannot be meant, before anything is changed."""
    times = getattr(args, "swap_optimizer_times", 16)
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise ValueError(f"--swap-optimizer-times must be an integer of at least 1, got {times!r}")
    if getattr(args, "swap_optimizer", False):
        if getattr(args, "optimizer", "adam") != "adam":
            raise ValueError(
                f"--swap-optimizer works with --optimizer adam, not with {args.optimizer}: "
                "leave it out"
            )
        for other in ("optimizer_cpu_offload", "use_precision_aware_optimizer"):
            if getattr(args, other, False):
                raise ValueError(
                    f"--swap-optimizer and --{other.replace('_', '-')} both place the optimizer's "
                    "states: leave one out"
                )
    if getattr(args, "swap_layer_input", False) and getattr(
        args, "distribute_saved_activations", False
    ):
        raise ValueError(
            "--distribute-saved-activations replaces a layer's input by a part of it, which "
            "--swap-layer-input cannot follow: leave one out"
        )
