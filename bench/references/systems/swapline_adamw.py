"""swapline.optim.AdamW."""

import importlib.util

import machine
import swapline.sim
import torch
from workloads import SETTINGS

import swapline
from systems import OPTIMIZER

NAME = "Swapline"
WORKLOAD = OPTIMIZER


def missing(paths):
    if importlib.util.find_spec("swapline.optim") is None:
        return "swapline.optim is not in this build"
    return None


def make_step(paths, parameters, times):
    from swapline.optim import AdamW

    device = torch.device(machine.DEVICE, 0)
    context = swapline.SwapContext(device, like=swapline.sim.context_options())
    return AdamW(parameters, swap_optimizer_times=times, context=context, **SETTINGS).step
