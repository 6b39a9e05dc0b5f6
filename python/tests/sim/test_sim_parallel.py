"""torch's own parallelism on two simulated devices against the same on the CPU, bit for bit: FSDP2,
DDP, tensor parallelism, distributed checkpoints, pipeline schedules."""

import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as pipelines
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from swapline import sim

DIM = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def make_model(num_layers: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(num_layers)))


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, DIM, generator=torch.Generator().manual_seed(10 * step + rank))


def whole(tensor) -> torch.Tensor:
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.detach().cpu()


def sharded(device: str, mixed: bool, offload: bool = False):
    policies = {}
    if mixed:
        policies["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if offload:
        policies["offload_policy"] = CPUOffloadPolicy()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = make_model() if offload else make_model().to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh, **policies)
    fully_shard(model, mesh=mesh, **policies)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def train(
    model, optimizer, rank: int, device: str, steps: int = 3, clip: bool = True
) -> list[torch.Tensor]:
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch(rank, step).to(device)).float().square().mean()
        loss.backward()
        if clip:
            seen.append(whole(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        seen.append(whole(loss))
    return seen + [whole(p) for p in model.parameters()]


def assert_same(on_sim: list, on_cpu: list) -> None:
    assert len(on_sim) == len(on_cpu) > 0
    for index, (a, b) in enumerate(zip(on_sim, on_cpu)):
        assert torch.equal(a, b), index


def fsdp(rank, size):
    for mixed in (False, True):
        on_cpu = train(*sharded("cpu", mixed), rank, "cpu")
        times = []
        for late_copies in (False, False, True):
            with sim.settings(late_copies=late_copies):
                assert_same(train(*sharded("sim", mixed), rank, "sim"), on_cpu)
                times.append(sim.time_ms())
        assert times == [times[0]] * 3
    with sim.settings():
        on_sim = train(*sharded("sim", False, offload=True), rank, "sim")
        on_cpu = train(*sharded("cpu", False), rank, "cpu")
        # Offloaded states are the CPU optimizer's, clipping is on the CPU: the same bits.
        assert_same(on_sim, on_cpu)
        del on_sim


def ddp(rank, size):
    seen = {}
    for device in ("sim", "cpu"):
        model = nn.parallel.DistributedDataParallel(make_model().to(device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        seen[device] = train(model, optimizer, rank, device)
    assert_same(seen["sim"], seen["cpu"])


def tensor_parallel(rank, size):
    seen = {}
    for device in ("sim", "cpu"):
        model = make_model().to(device)
        mesh = init_device_mesh(device, (size,))
        for layer in model:
            parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        # Clipping does not take tensors and DTensors together, on any device.
        seen[device] = train(model, optimizer, 0, device, clip=False)
    assert_same(seen["sim"], seen["cpu"])


def in_two_dimensions(rank, size):
    """Replicas of shards, and shards of layers that are split: four ranks."""
    seen = {}
    for device in ("sim", "cpu"):
        mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("outer", "inner"))
        model = make_model().to(device)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        seen[device] = train(model, optimizer, rank, device)
        model = make_model().to(device)
        for layer in model:
            split = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, mesh["inner"], split)
            fully_shard(layer, mesh=mesh["outer"])
        fully_shard(model, mesh=mesh["outer"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        seen[device] += train(model, optimizer, rank // 2, device, clip=False)
    assert_same(seen["sim"], seen["cpu"])


def checkpoints(rank, size, folder):
    model, optimizer = sharded("sim", False)
    train(model, optimizer, rank, "sim", steps=1)

    def state(model, optimizer):
        return {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }

    dcp.save(state(model, optimizer), checkpoint_id=f"{folder}/sync")
    future = dcp.async_save(state(model, optimizer), checkpoint_id=f"{folder}/async")
    whole_model = StateDictOptions(full_state_dict=True, cpu_offload=True)
    full = get_model_state_dict(model, options=whole_model)
    assert set(full) == (set(make_model().state_dict()) if rank == 0 else set())
    assert all(value.device.type == "cpu" for value in full.values())
    future.result()
    after = train(model, optimizer, rank, "sim", steps=2)
    for name in ("sync", "async"):
        again, its_optimizer = sharded("sim", False)
        loaded = state(again, its_optimizer)
        dcp.load(loaded, checkpoint_id=f"{folder}/{name}")
        set_model_state_dict(again, loaded["model"])
        set_optimizer_state_dict(again, its_optimizer, loaded["optimizer"])
        assert_same(train(again, its_optimizer, rank, "sim", steps=2), after)


SCHEDULES = {
    "GPipe": (pipelines.ScheduleGPipe, 1, "loop"),
    "1F1B": (pipelines.Schedule1F1B, 1, "loop"),
    "Interleaved1F1B": (pipelines.ScheduleInterleaved1F1B, 2, "loop"),
    "LoopedBFS": (pipelines.ScheduleLoopedBFS, 2, "loop"),
    "InterleavedZeroBubble": (pipelines.ScheduleInterleavedZeroBubble, 2, "loop"),
    "ZBVZeroBubble": (pipelines.ScheduleZBVZeroBubble, 2, "v"),
    "DualPipeV": (pipelines.ScheduleDualPipeV, 2, "v"),
}


def pipeline(rank, size, device, name):
    schedule_class, num_local, placement = SCHEDULES[name]
    num_stages = num_local * size
    second = num_stages - 1 - rank if placement == "v" else rank + size
    mine = [rank, second][:num_local]
    layers = make_model(num_stages).to(device)
    stages = [PipelineStage(layers[i], i, num_stages, torch.device(device)) for i in mine]

    def loss_of(output, target):
        return (output - target).square().mean()

    schedule = schedule_class(
        stages[0] if num_local == 1 else stages, n_microbatches=4, loss_fn=loss_of
    )
    inputs = torch.randn(8, DIM, generator=torch.Generator().manual_seed(5)).to(device)
    losses = []
    seen = []
    for _ in range(2):
        args = (inputs,) if 0 in mine else ()
        kwargs = {"target": inputs * 2, "losses": losses} if num_stages - 1 in mine else {}
        output = schedule.step(*args, **kwargs)
        if num_stages - 1 in mine and output is not None:
            seen.append(whole(output))
    seen += [whole(loss) for loss in losses]
    return seen + [whole(p.grad) for i in mine for p in layers[i].parameters()]


def schedules(rank, size):
    for name in SCHEDULES:
        times = []
        for late_copies in (False, True):
            with sim.settings(late_copies=late_copies):
                on_sim = pipeline(rank, size, "sim", name)
                times.append(sim.time_ms())
        assert_same(on_sim, pipeline(rank, size, "cpu", name))
        assert times[0] == times[1], name
        assert sim.num_races() == 0, (name, sim.races()[0])


def all_of_it(rank, size, folder):
    warnings.simplefilter("ignore")
    for part in (fsdp, ddp, tensor_parallel, schedules):
        part(rank, size)
        assert sim.num_races() == 0, (part.__name__, sim.races()[0])
    checkpoints(rank, size, folder)


def test_two_ranks(tmp_path):
    run_ranks(all_of_it, str(tmp_path))


def test_four_ranks():
    run_ranks(in_two_dimensions, size=4)
