"""What the worker programs have in common. Import this first: it sets up what clients import."""

import gc
import json
import os
import pathlib
import sys
from collections.abc import Callable

import torch
import torch._dynamo
import torch._inductor.codecache

# torch has looked for triton by now and knows that there is none: the stand-ins are for clients.
sys.path.append(str(pathlib.Path(__file__).parent / "stand_ins"))

# isort: split

import tensorboard_writer

import swapline.sim

tensorboard_writer.install()

rank = int(os.environ["RANK"])
device = torch.device("sim", rank)


def run_jobs(train: Callable[[dict], dict]) -> None:
    """Runs train(job) for each job and saves what it returns, with what the machine counted. Where
    "raises" is set, the message of the error instead."""
    folder = pathlib.Path(sys.argv[1])
    results = {}
    for job in json.loads((folder / "jobs.json").read_text()):
        os.environ["MASTER_PORT"] = str(job["port"])
        swapline.sim.configure(**job.get("settings", {}))
        torch.sim.set_device(device)
        swapline.sim.clear_races()
        tensorboard_writer.scalars.clear()
        if job.get("raises"):
            result = {"error": _message_of(train, job)}
        else:
            result = train(job)
            result["loss"] = dict(
                tensorboard_writer.scalars.get("loss_metrics/global_avg_loss", {})
            )
            result["grad_norm"] = dict(tensorboard_writer.scalars.get("grad_norm", {}))
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        gc.collect()
        torch.sim.synchronize(device)
        result["num_races"] = swapline.sim.num_races()
        result["races"] = swapline.sim.races()[:1]
        result["bytes_left"] = swapline.sim.memory(device)["allocated_bytes"]
        results[job["name"]] = result
    torch.save(results, folder / f"rank{rank}.pt")


def machine_figures() -> dict:
    """What the device holds and counted, after it has done all it was given."""
    torch.sim.synchronize(device)
    memory = swapline.sim.memory(device)
    return {
        "allocated_bytes": memory["allocated_bytes"],
        "peak_allocated_bytes": memory["peak_allocated_bytes"],
        **{name: swapline.sim.counters(device)[name] for name in ("bytes_in", "bytes_out")},
    }


def to_host(tensors: dict) -> dict:
    """Copies on the CPU; of a DTensor, this rank's part."""
    copies = {}
    for name, value in tensors.items():
        if isinstance(value, torch.Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            copies[name] = local.detach().to("cpu", copy=True)
        else:
            copies[name] = value
    return copies


def _message_of(train: Callable[[dict], dict], job: dict) -> str:
    try:
        train(job)
    except Exception as error:  # noqa: BLE001  (any of them is what the job is about)
        return f"{type(error).__name__}: {error}"
    return "no error"
