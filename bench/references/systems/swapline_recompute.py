"""swapline.layer_input: recompute with swap built in."""

import importlib.util

import machine
import swapline.sim
import torch

import swapline
from systems import LAYER_INPUTS

NAME = "Swapline, recompute()"
WORKLOAD = LAYER_INPUTS
WARM_UP = 8


def missing(paths):
    if importlib.util.find_spec("swapline.layer_input") is None:
        return "swapline.layer_input is not in this build"
    return None


def make_step(paths, layers):
    from swapline.layer_input import LayerInputs

    device = torch.device(machine.DEVICE, 0)
    context = swapline.SwapContext(device, like=swapline.sim.context_options())
    inputs = LayerInputs(context, num_layers=len(layers))

    def step(x):
        hidden_states = x * 1
        for layer in layers:
            hidden_states = inputs.recompute(layer, hidden_states)
        hidden_states.sum().backward()

    return step
