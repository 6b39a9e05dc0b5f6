"""swapline.layer_input: swap around layers that torch.utils.checkpoint recomputes."""

import importlib.util

import machine
import swapline.sim
import torch
from torch.utils.checkpoint import checkpoint

import swapline
from systems import LAYER_INPUTS

NAME = "Swapline around torch.utils.checkpoint"
WORKLOAD = LAYER_INPUTS
WARM_UP = 8


def missing(paths):
    if importlib.util.find_spec("swapline.layer_input") is None:
        return "swapline.layer_input is not in this build"
    return None


def make_step(paths, layers):
    from swapline.layer_input import SwapLayerInputs

    model = torch.nn.ModuleList(layers)
    device = torch.device(machine.DEVICE, 0)
    context = swapline.SwapContext(device, like=swapline.sim.context_options())
    swapping = SwapLayerInputs(model, layers=list(layers), context=context)

    def step(x):
        with swapping:
            hidden_states = x * 1
            for layer in layers:
                hidden_states = checkpoint(layer, hidden_states, use_reentrant=True)
            hidden_states.sum().backward()

    return step
