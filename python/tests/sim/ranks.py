"""Runs a function in several processes, one rank each, over a process group on both devices."""

import datetime
import multiprocessing
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import swapline.sim

PRELOADED = ["torch", "torch.distributed.fsdp", "torch.distributed.pipelining", "torch.testing"]
TIMEOUT = datetime.timedelta(seconds=60)


def _enter(rank: int, size: int, folder: str, function, args: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "cpu:gloo,sim:swapline",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
    )
    function(rank, size, *args)
    assert swapline.sim.num_races() == 0, swapline.sim.races()[0]
    dist.destroy_process_group()


def run_ranks(function, *args, size: int = 2) -> None:
    """Calls function(rank, size, *args) on every rank; raises the first error of any."""
    with tempfile.TemporaryDirectory() as folder:
        # One process imports torch and is forked; swapline.sim is loaded by each rank itself.
        multiprocessing.set_forkserver_preload(PRELOADED)
        mp.start_processes(
            _enter, (size, folder, function, args), nprocs=size, start_method="forkserver"
        )
