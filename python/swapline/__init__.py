"""Swapline: layer inputs and optimizer states in pinned host memory, streamed through the device.

    swapline.optim        AdamW, Adam, Muon in place of torch.optim's
    swapline.layer_input  recompute with swap built in, and swap for models that recompute already
    swapline.sim          the simulated accelerator, torch.device("sim"); loaded only when imported

Results are those of training without it, bit for bit.
"""

import torch

from swapline._version import check_torch as _check_torch

_check_torch(torch.__version__)

# What follows loads the binding, so it comes after the check.
from swapline import layer_input, optim  # noqa: E402
from swapline._core import SwapContext  # noqa: E402
from swapline.errors import HostMemoryError  # noqa: E402
from swapline.package import __version__, cmake_prefix_path  # noqa: E402

__all__ = [
    "HostMemoryError",
    "SwapContext",
    "__version__",
    "cmake_prefix_path",
    "layer_input",
    "optim",
]
