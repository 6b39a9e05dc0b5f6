"""One process of the pipeline tests: `worker_layer_input.py RANK WORLD FOLDER`. Every schedule of
torch.distributed.pipelining, with each way to swap that it allows, against a run without."""

import pathlib
import sys

import torch
import torch.distributed as dist
from layer_models import DIM, Layer, assert_equal, gradients, make_context, torch_way
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

import swapline.sim
from swapline.layer_input import LayerInputs, SwapLayerInputs

NUM_LAYERS = 4  # a stage
NUM_MICROBATCHES = 4
ROWS = 8  # a micro-batch
INPUT_BYTES = ROWS * DIM * 4  # a multiple of 512

# The stages of a rank of two; whether input's and weights' gradients are computed apart.
SCHEDULES = {
    "ScheduleGPipe": ("one", False),
    "Schedule1F1B": ("one", False),
    "ScheduleInterleaved1F1B": ("loop", False),
    "ScheduleLoopedBFS": ("loop", False),
    "ScheduleInterleavedZeroBubble": ("loop", True),
    "ScheduleZBVZeroBubble": ("v", True),
    "ScheduleDualPipeV": ("v", True),
}


class Stage(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        torch.manual_seed(index)
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))
        self.embed = nn.Linear(DIM, DIM) if index == 0 else None
        self.run = None

    def forward(self, h):
        if self.embed is not None:
            h = self.embed(h)
        for layer in self.layers:
            h = self.run(layer, h)
        return h


def stage_indices(layout: str, rank: int, world: int) -> list[int]:
    if layout == "one":
        return [rank]
    return [rank, rank + world] if layout == "loop" else [rank, 2 * world - 1 - rank]


def make_schedule(name: str, stages: list[Stage], indices: list[int], world: int):
    layout, _ = SCHEDULES[name]
    num_stages = world if layout == "one" else 2 * world
    # Said, not inferred: that takes torch.autograd.grad, which recompute refuses.
    example = torch.empty(ROWS, DIM, device="sim")
    made = [
        PipelineStage(
            stage,
            index,
            num_stages,
            torch.device("sim:0"),
            input_args=example.clone().requires_grad_(index > 0),
            output_args=example.clone().requires_grad_(),
        )
        for stage, index in zip(stages, indices)
    ]
    return getattr(schedules, name)(
        made if layout != "one" else made[0],
        n_microbatches=NUM_MICROBATCHES,
        loss_fn=lambda out, target: (out - target).square().mean(),
    )


def run(name: str, way: str, swaps: bool, rank: int, world: int):
    layout, _ = SCHEDULES[name]
    indices = stage_indices(layout, rank, world)
    stages = [Stage(index).to("sim") for index in indices]
    inputs, context = [], make_context() if swaps else None
    if way == "recompute":
        for stage in stages:
            inputs.append(LayerInputs(context, enabled=swaps, max_swapping_out=1))
            stage.run = inputs[-1].recompute
    else:
        for stage in stages:
            stage.run = torch_way(way)
    swapped = (
        SwapLayerInputs(stages, context=context, max_swapping_out=1, keep_last=0)
        if swaps and way != "recompute"
        else None
    )
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(NUM_MICROBATCHES * ROWS, DIM, generator=generator).to("sim")
    target = torch.randn(NUM_MICROBATCHES * ROWS, DIM, generator=generator).to("sim")
    first, last = 0 in indices, max(stage_indices(layout, r, world)[-1] for r in range(world))
    schedule = make_schedule(name, stages, indices, world)
    arguments = ([x] if first else [], {"target": target} if last in indices else {})
    if swapped is not None:
        with swapped:
            for _ in range(2):
                schedule.step(*arguments[0], **arguments[1])
        inputs = [swapped]
    else:
        for _ in range(2):
            schedule.step(*arguments[0], **arguments[1])
    torch.sim.synchronize()
    grads = [grad for stage in stages for grad in gradients(stage)]
    return grads, [each.stats() for each in inputs], context


def check(name: str, way: str, rank: int, world: int) -> None:
    expected, *_ = run(name, way, False, rank, world)
    grads, stats, context = run(name, way, True, rank, world)
    assert len(grads) >= 4 * NUM_LAYERS
    assert_equal(grads, expected)
    layout, _ = SCHEDULES[name]
    num_chunks = 1 if layout == "one" else 2
    swapped = sum(each["num_swapped_out"] for each in stats)
    kept = sum(each["num_kept_on_device"] for each in stats)
    refused = sum(each["num_refused"] for each in stats)
    assert kept == 0 and swapped >= 2 * num_chunks * NUM_MICROBATCHES * (NUM_LAYERS - 1)
    # What a stage receives is a leaf that the schedule itself holds on to: it stays.
    assert refused <= 2 * num_chunks * NUM_MICROBATCHES
    # Of each stage, strict: one a copy direction.
    resident = max(each["peak_resident_inputs"] for each in stats)
    assert resident <= 2, (name, way, resident)
    host = context.host_stats()["peak_requested_bytes"]
    in_flight = {"ScheduleGPipe": NUM_MICROBATCHES, "Schedule1F1B": world - rank}.get(name)
    if in_flight is not None:
        layers = NUM_LAYERS - (1 if refused else 0)
        assert host == layers * INPUT_BYTES * in_flight, (name, way, host)
    assert swapline.sim.num_races() == 0, swapline.sim.races()[0]
    assert all(each["resident_inputs"] == 0 for each in stats)
    assert context.host_stats()["requested_bytes"] == 0
    print(
        f"{name} {way}: swapped {swapped}, refused {refused}, resident {resident}, "
        f"host {host}, misses {sum(each['num_prefetch_misses'] for each in stats)}"
    )


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    swapline.sim.configure("tiny", late_copies=True)
    dist.init_process_group(
        "cpu:gloo,sim:swapline",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
    )
    for name, (_, splits_backward) in SCHEDULES.items():
        ways = (
            ("non-reentrant",) if splits_backward else ("recompute", "reentrant", "non-reentrant")
        )
        for way in ways:
            check(name, way, rank, world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
