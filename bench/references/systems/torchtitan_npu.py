"""torchtitan-npu's swap optimizer, on torchtitan's container of optimizers."""

import functools
import logging
import pathlib
import sys
from dataclasses import dataclass

import stand_ins
import torch
from workloads import SETTINGS

from systems import OPTIMIZER

NAME = "torchtitan-npu swap_optimizer"
WORKLOAD = OPTIMIZER
SWAP_FILE = "torchtitan_npu/patches/optimizer/swap_optimizer.py"
CONTAINER_FILE = "torchtitan/components/optimizer.py"
TORCH_STEPS = {torch.optim.AdamW: torch.optim.AdamW.step, torch.optim.Adam: torch.optim.Adam.step}


def missing(paths):
    return stand_ins.absent(
        paths.get("torchtitan_npu"), "--torchtitan-npu", SWAP_FILE
    ) or stand_ins.absent(paths.get("torchtitan"), "--torchtitan", CONTAINER_FILE)


class Configurable:
    """The base of configured components: of its surface, what the container's definition uses."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass


class DistributedMuon(torch.optim.Optimizer):
    """Named by the file, not used here."""


@functools.cache
def load(paths: tuple[str, str]):
    stand_ins.put_module("torchtitan.config", Configurable=Configurable)
    stand_ins.put_module("torchtitan.distributed", ParallelDims=object)
    stand_ins.put_module("torchtitan.tools.logging", logger=logging.getLogger("torchtitan"))
    npu = stand_ins.device_module("torch.npu")
    stand_ins.put_module("torchtitan.tools.utils", get_device_info=lambda: ("sim", npu))
    swap, titan = map(pathlib.Path, paths)
    container = stand_ins.load_file("torchtitan.components.optimizer", titan / CONTAINER_FILE)
    stand_ins.put_module(
        "torchtitan_npu.patches.optimizer.muon_optimizer",
        DistributedMuon=DistributedMuon,
        MuonHybridOptimizersContainer=type(
            "MuonHybridOptimizersContainer",
            (container.OptimizersContainer,),
            {"Config": dataclass(type("Config", (container.OptimizersContainer.Config,), {}))},
        ),
    )
    return stand_ins.load_file("torchtitan_npu.patches.optimizer.swap_optimizer", swap / SWAP_FILE)


def make_step(paths, parameters, times):
    original = load((paths["torchtitan_npu"], paths["torchtitan"]))
    container = original.SwapOptimizersContainer
    config = container.Config(
        name="AdamW",
        lr=SETTINGS["lr"],
        beta1=SETTINGS["betas"][0],
        beta2=SETTINGS["betas"][1],
        eps=SETTINGS["eps"],
        weight_decay=SETTINGS["weight_decay"],
        swap_optimizer=True,
        swap_optimizer_times=times,
    )
    model = torch.nn.Module()
    for index, parameter in enumerate(parameters):
        model.register_parameter(f"p{index}", parameter)
    return container(config, model_parts=[model]).step


def forget():
    """Its maps live as long as the class, and torch's step() is replaced for good."""
    original = sys.modules["torchtitan_npu.patches.optimizer.swap_optimizer"]
    for name, value in vars(original.SwapOptimizersContainer).items():
        if name.endswith("_map"):
            value.clear()
    original.SwapOptimizersContainer.swap_to_device_stream = None
    for optimizer, step in TORCH_STEPS.items():
        optimizer.step = step
