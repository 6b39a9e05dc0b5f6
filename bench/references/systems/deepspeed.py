"""DeepSpeed's offload of checkpointed hidden states, by its context manager."""

import functools

import stand_ins
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from systems import LAYER_INPUTS

NAME = "DeepSpeed hidden-states offload"
WORKLOAD = LAYER_INPUTS
NOTE = "its context keeps what it brought back until it ends, behind the backward"
FILE = "deepspeed/runtime/activation_checkpointing/offload_activations.py"


def missing(paths):
    return stand_ins.absent_package(FILE)


class SimulatedAccelerator:
    """Of DeepSpeed's accelerator interface, what that file asks for."""

    def __init__(self):
        self.Stream = torch.sim.Stream
        self.stream = torch.sim.stream
        self.current_stream = torch.sim.current_stream

    def is_synchronized_device(self):
        return False

    def on_accelerator(self, tensor):
        return tensor.device.type == "sim"

    def pin_memory(self, tensor, make_copy=True):
        return tensor.pin_memory()


@functools.cache
def load():
    accelerator = SimulatedAccelerator()
    stand_ins.put_module("deepspeed.accelerator", get_accelerator=lambda: accelerator)
    return stand_ins.load_file(
        "deepspeed.runtime.activation_checkpointing.offload_activations",
        stand_ins.file_of_package(FILE),
    )


def make_step(paths, layers):
    offload = load().get_checkpoint_hidden_states_offloading_ctx_manager()

    def step(x):
        hidden_states = x * 1
        with offload, set_checkpoint_early_stop(False):  # the same work as the others
            for layer in layers:
                offload.mark(hidden_states)  # Hugging Face's layers are marked by a patch of it
                hidden_states = checkpoint(layer, hidden_states, use_reentrant=False)
            hidden_states.sum().backward()

    return step
