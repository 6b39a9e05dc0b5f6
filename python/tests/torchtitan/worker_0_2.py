"""Trains with torchtitan 0.2.2, unmodified but for a model small enough for a test."""

import time

import client_worker as worker  # first: it sets up what torchtitan imports

# isort: split

import torchtitan.train
from torchtitan.config import ConfigManager
from torchtitan.models import llama3
from torchtitan.protocols.train_spec import get_train_spec
from torchtitan.tools.logging import init_logger


def train(job: dict) -> dict:
    config = ConfigManager().parse_args(job["argv"])
    if job.get("wraps_twice"):
        from swapline.torchtitan import with_swap  # registered with it by now

        with_swap(get_train_spec("llama3"))
    trainer = torchtitan.train.Trainer(config)
    trainer.train()
    worker.machine_figures()
    trainer.optimizers.zero_grad()  # gives back the last slots, whose copies are done by now
    figures = worker.machine_figures()
    parameters = {}
    for part in trainer.model_parts:
        parameters |= worker.to_host(part.state_dict())
    states = worker.to_host(trainer.optimizers.state_dict())
    inputs = getattr(trainer.model_parts[0], "swap_layer_inputs", None)
    trainer.close()
    return figures | {
        "parameters": parameters,
        "states": states,
        "inputs": inputs.stats() if inputs is not None else None,
    }


if __name__ == "__main__":
    init_logger()
    llama3.llama3_args["tiny"] = llama3.TransformerModelArgs(
        dim=32, n_layers=4, n_heads=2, vocab_size=96, multiple_of=16, max_seq_len=64
    )
    # Trainer.train() ends with two seconds of sleep on rank 0.
    torchtitan.train.time = type(
        "", (), {"sleep": lambda _: None, "perf_counter": time.perf_counter}
    )
    worker.run_jobs(train)
