"""FSDP2 with CPUOffloadPolicy: parameters, gradients, states and the update on the host."""

import functools
import gc

import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from workloads import SETTINGS

from systems import OPTIMIZER

NAME = "FSDP2 CPUOffloadPolicy"
WORKLOAD = OPTIMIZER
TIMES = (1,)
NOTE = (
    "a step here is all parameters in, all gradients out, and the update by the CPU, whose time "
    "no cost model of the device has. Its peak counts the gradients twice: they are the model's "
    "constants too"
)


def missing(paths):
    if "swapline" not in torch.distributed.Backend.backend_type_map:
        return "the simulated device has no process group in this build"
    return None


@functools.cache
def mesh():
    torch.distributed.init_process_group(
        "cpu:gloo,sim:swapline", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    return init_device_mesh("sim", (1,))


class Products(torch.nn.Module):
    """Its loss has the given gradients."""

    def __init__(self, parameters, gradients):
        super().__init__()
        self.gradients = gradients
        for index, parameter in enumerate(parameters):
            self.register_parameter(f"p{index}", torch.nn.Parameter(parameter.detach().clone()))

    def forward(self):
        products = zip(self.parameters(), self.gradients, strict=True)
        return sum((parameter * gradient).sum() for parameter, gradient in products)


def make_step(paths, parameters, times):
    gradients = [parameter.grad for parameter in parameters]
    model = Products(parameters, gradients)
    fully_shard(model, mesh=mesh(), offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **SETTINGS)

    def step():
        model().backward()
        optimizer.step()
        optimizer.zero_grad()
        # Where the workload looks for them; the device's copies are not what this system has.
        for shown, held in zip(parameters, model.parameters(), strict=True):
            shown.data = held.to_local().detach()

    return step


def forget():
    gc.collect()  # its hooks and states hold one another in cycles, some behind finalizers
