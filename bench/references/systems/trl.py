"""TRL's OffloadActivations around recomputed layers."""

import functools
import logging
import types

import stand_ins
from torch.utils.checkpoint import checkpoint

from systems import LAYER_INPUTS

NAME = "TRL OffloadActivations"
WORKLOAD = LAYER_INPUTS
FILE = "trl/models/activation_offloading.py"


def missing(paths):
    return stand_ins.absent_package(FILE)


@functools.cache
def load():
    # Of accelerate, psutil and transformers it asks for a logger, the memory in use and whether
    # this is an NPU, each once.
    stand_ins.put_module("accelerate.logging", get_logger=logging.getLogger)
    stand_ins.put_module("accelerate.utils.versions", is_torch_version=lambda *_: True)
    no_memory_used = types.SimpleNamespace(percent=0.0)
    stand_ins.put_module("psutil", virtual_memory=lambda: no_memory_used)
    stand_ins.put_module("transformers", is_torch_npu_available=lambda: False)
    return stand_ins.load_file(
        "trl.models.activation_offloading", stand_ins.file_of_package(FILE)
    )


def make_step(paths, layers):
    offload = load().OffloadActivations()

    def step(x):
        hidden_states = x * 1
        with offload:
            for layer in layers:
                hidden_states = checkpoint(layer, hidden_states, use_reentrant=True)
        hidden_states.sum().backward()

    return step
