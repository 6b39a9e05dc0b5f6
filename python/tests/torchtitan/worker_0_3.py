"""Trains with torchtitan 0.3.0. Beyond a model small enough for a test: attention by torch's own
operators (its flex attention is compiled, its varlen attention a kernel of CUDA's) and, on a torch
without it, torch.distributed.set_timeout."""

import time

import client_worker as worker  # first: it sets up what torchtitan imports

# isort: split

import torch
import torchtitan.trainer
from torchtitan.config import ConfigManager
from torchtitan.models import llama3
from torchtitan.models.common import compute_ffn_hidden_dim
from torchtitan.tools.logging import init_logger


def tiny_model(attn_backend: str, tp_gemm_backend: str = "default"):
    config = llama3._debugmodel(attn_backend, tp_gemm_backend)
    config.dim, config.vocab_size = 32, 96
    config.tok_embeddings.num_embeddings, config.tok_embeddings.embedding_dim = 96, 32
    config.norm.normalized_shape = 32
    config.lm_head.in_features, config.lm_head.out_features = 32, 96
    config.layers = llama3._build_llama3_layers(
        n_layers=4,
        dim=32,
        n_heads=2,
        hidden_dim=compute_ffn_hidden_dim(32, multiple_of=16),
        rope=llama3.ComplexRoPE.Config(dim=16, max_seq_len=64, theta=500000, scaling="llama"),
        attn_backend=attn_backend,
    )
    return config


def train(job: dict) -> dict:
    config = ConfigManager().parse_args(job["argv"])
    trainer = config.build()
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
    llama3.llama3_configs["debugmodel"] = tiny_model
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = lambda timeout, group=None: None
    # Trainer.train() ends with two seconds of sleep on rank 0.
    torchtitan.trainer.time = type(
        "", (), {"sleep": lambda _: None, "perf_counter": time.perf_counter}
    )
    worker.run_jobs(train)
