"""MindSpeed's swap_layer_input, by its wrappers around a layer that Megatron would recompute."""

import functools
import pathlib
import sys

import stand_ins
import torch
from torch.utils.checkpoint import checkpoint

from systems import LAYER_INPUTS

NAME = "MindSpeed swap_layer_input"
WORKLOAD = LAYER_INPUTS
FOLDER = "mindspeed/core/memory/swap_layer_input"
FILES = ("swap_layer_input_manager", "swap_layer_input")
PACKAGE = FOLDER.replace("/", ".")


def missing(paths):
    for file in FILES:
        reason = stand_ins.absent(paths.get("mindspeed"), "--mindspeed", f"{FOLDER}/{file}.py")
        if reason:
            return reason
    return None


@functools.cache
def load(path: str):
    npu = stand_ins.device_module("torch.npu")
    torch.npu = npu
    stand_ins.put_module("torch_npu", npu=npu)
    stand_ins.put_module(
        "mindspeed.core.transformer.moe.moe_feature.fb_overlap.modules.utils",
        LayerGraph=type("LayerGraph", (), {}),
    )
    return [
        stand_ins.load_file(f"{PACKAGE}.{file}", pathlib.Path(path) / FOLDER / f"{file}.py")
        for file in FILES
    ]


def make_step(paths, layers):
    _, wrappers = load(paths["mindspeed"])

    class TransformerLayer(torch.nn.Module):
        """As Megatron's: hidden_states first, and a tuple back."""

        @wrappers.swap_layer_input_init_wrapper
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        @wrappers.swap_layer_input_forward_wrapper
        def forward(self, hidden_states):
            return self.layer(hidden_states), None

    wrapped = [TransformerLayer(layer) for layer in layers]

    def step(x):
        hidden_states = x * 1
        for layer in wrapped:
            hidden_states, _ = checkpoint(layer, hidden_states, use_reentrant=True)
        hidden_states.sum().backward()

    return step


def forget():
    manager = sys.modules[f"{PACKAGE}.swap_layer_input_manager"].SwapLayerInputManager
    manager.manager_map.clear()
    manager._h2d_stream = manager._d2h_stream = None
