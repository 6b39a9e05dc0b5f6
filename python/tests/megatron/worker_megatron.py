"""Trains a GPTModel of megatron-core 0.16.1 on the simulated device."""

import types

import client_worker as worker  # first: it sets up what clients import

# isort: split

import megatron_swap  # the example
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_model_config
from megatron_cuda_names import cuda_means_sim

import swapline.megatron
import swapline.sim

SEQUENCE, BATCH, VOCABULARY = 16, 2, 64


def _config(job: dict) -> dict:
    options = dict(job.get("config", {}))
    if options.get("bf16"):
        options |= {"params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16}
    else:
        options["pipeline_dtype"] = torch.float32
    return options


def build(job: dict) -> DistributedDataParallel:
    tensor_parallel.model_parallel_cuda_manual_seed(5)
    torch.manual_seed(3)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=32,
        num_attention_heads=2,
        ffn_hidden_size=64,
        hidden_dropout=job.get("dropout", 0.1),
        attention_dropout=job.get("dropout", 0.1),
        use_cpu_initialization=True,
        pipeline_model_parallel_size=dist.get_world_size(),
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        **_config(job),
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="LayerNorm"),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).to(worker.device)
    if config.bf16:
        model = Float16Module(config, model)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=job.get("distributed", False))
    return DistributedDataParallel(config, ddp, model)


def batches():
    """The same for every rank and run."""
    generator = torch.Generator().manual_seed(7)
    positions = torch.arange(SEQUENCE).repeat(BATCH, 1)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE).tril() < 0.5
    while True:
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
        yield [x.to(worker.device) for x in (tokens[:, :-1], positions, mask, tokens[:, 1:])]


def forward_step(iterator, model):
    tokens, positions, mask, labels = next(iterator)
    output = model(tokens, positions, mask, labels=labels)
    return output, lambda losses: (losses.mean(), {"loss": losses.mean().item()})


def train(job: dict) -> dict:
    with swapline.megatron.apply(types.SimpleNamespace(**job.get("args", {}))):
        dist.init_process_group("cpu:gloo,sim:swapline")
        parallel_state.initialize_model_parallel(pipeline_model_parallel_size=dist.get_world_size())
        try:
            return _train(job)
        finally:
            parallel_state.destroy_model_parallel()


def _train(job: dict) -> dict:
    is_bf16 = job.get("config", {}).get("bf16", False)
    config = OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        weight_decay=0.1,
        clip_grad=1.0,
        bf16=is_bf16,
        params_dtype=torch.bfloat16 if is_bf16 else torch.float32,
        use_distributed_optimizer=job.get("distributed", False),
    )
    model, optimizer, applied = megatron_swap.build(
        job.get("words", []), lambda: build(job), config
    )
    with applied:
        return _train_steps(job, model, optimizer)


def _train_steps(job: dict, model: DistributedDataParallel, optimizer) -> dict:
    get_model_config(model).finalize_model_grads_func = None
    iterator = batches()
    first_step = 0
    if "load" in job:
        saved = torch.load(job["load"])
        first_step = saved["step"]
        # As Megatron does before it loads: whatever is there is replaced.
        for each in getattr(optimizer, "chained_optimizers", [optimizer]):
            each.init_state_fn(each.optimizer, each.config)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        for _ in range(first_step * job.get("num_microbatches", 1)):
            next(iterator)
    losses, norms, gradients, figures = [], [], [], {}
    for step in range(first_step, job.get("num_steps", 4)):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        torch.sim.synchronize(worker.device)
        swapline.sim.reset_peak_memory(worker.device)
        reduced = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iterator,
            model=model,
            num_microbatches=job.get("num_microbatches", 1),
            seq_length=SEQUENCE,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        figures = worker.machine_figures()
        losses.append([each["loss"] for each in reduced])
        gradients.append({n: p.main_grad.to("cpu", copy=True) for n, p in model.named_parameters()})
        _, norm, _ = optimizer.step()
        norms.append(float(norm))
        if step + 1 == job.get("save_step"):
            torch.save(
                {
                    "step": step + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
                job["save"],
            )
    gpt = getattr(model.module, "module", model.module)  # inside Float16Module for bf16
    manager = getattr(gpt.decoder.layers[0], "swap_manager", None)
    return figures | {
        "losses": losses,
        "norms": norms,
        "gradients": gradients,
        "parameters": worker.to_host(dict(model.named_parameters())),
        "num_bytes": sum(p.numel() * 4 for p in model.parameters()),
        "inputs": manager.group.stats() if manager is not None else None,
    }


if __name__ == "__main__":
    with cuda_means_sim():
        worker.run_jobs(train)
