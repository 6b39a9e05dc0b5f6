"""Megatron-Core's fine-grained activation offloading, a group around each recomputed layer."""

import functools
import types

import stand_ins
import torch
import torch.distributed
from torch.utils.checkpoint import checkpoint

from systems import LAYER_INPUTS

NAME = "Megatron-Core fine-grained offloading"
WORKLOAD = LAYER_INPUTS
FILE = "megatron/core/pipeline_parallel/fine_grained_activation_offload.py"
NOTE = "two alternating group names, which is faster than one; it has no group for layer inputs"


def missing(paths):
    return stand_ins.absent_package(FILE)


@functools.cache
def load():
    stand_ins.put_module(
        "megatron.core.transformer.cuda_graphs", is_graph_capturing=lambda: False
    )
    stand_ins.put_module(
        "megatron.core.extensions.transformer_engine", cpu_offload=types.SimpleNamespace()
    )
    for name in ("Event", "Stream", "stream", "current_stream"):
        setattr(torch.cuda, name, getattr(torch.sim, name))
    torch.cuda.nvtx = types.SimpleNamespace(
        range_push=lambda name: None, range_pop=lambda: None
    )
    # It prints a table of all ranks after the first step.
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    return stand_ins.load_file(
        "megatron.core.pipeline_parallel.fine_grained_activation_offload",
        stand_ins.file_of_package(FILE),
    )


def make_step(paths, layers):
    offload = load().FineGrainedActivationOffloadingInterface
    offload.reset_instance()

    def step(x):
        hidden_states = x * 1
        offload.init_chunk_handler(1, None, 1)  # as each micro-batch begins; any size is offloaded
        for index, layer in enumerate(layers):
            name = f"layer_{index % 2}"
            with offload(True, hidden_states, name) as hidden_states:
                hidden_states = checkpoint(layer, hidden_states, use_reentrant=True)
            hidden_states = offload.group_commit(hidden_states, name)
        hidden_states.sum().backward()
        offload.reset()

    return step


def forget():
    load().PipelineOffloadManager.OFFLOAD_MGR = None
