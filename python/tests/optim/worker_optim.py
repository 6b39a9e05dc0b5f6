"""One process of the distributed tests: `worker_optim.py RANK WORLD FOLDER JOB…`. Each job is a
function below; the first one that fails ends the process."""

import copy
import datetime
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import swapline.sim
from swapline.optim import AdamW, Muon

NUM_STEPS = 20


class Net(torch.nn.Module):
    """Sizes that do not divide: shards are uneven, and with more than one rank some are empty."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(13, 16)
        self.up = torch.nn.Linear(16, 37)
        self.norm = torch.nn.LayerNorm(37)
        self.down = torch.nn.Linear(37, 16)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.Linear(16, 13, bias=False)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = h + self.down(self.norm(torch.relu(self.up(h)))) * self.scale
        return self.head(h)


def make_net(mixed=False):
    torch.manual_seed(0)
    net = Net().to("sim")
    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if mixed else {}
    for layer in (net.up, net.down):
        fully_shard(layer, **policy)
    return fully_shard(net, **policy)


def train(net, optimizer, num_steps, first=0, clip=True):
    for step in range(first, first + num_steps):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        tokens = torch.randint(13, (4, 9), generator=generator).to("sim")
        logits = net(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def local(tensor):
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def assert_same(ours, theirs, our_net, their_net):
    for (name, a), b in zip(our_net.named_parameters(), their_net.parameters(), strict=True):
        assert torch.equal(local(a), local(b)), name
        mine, other = ours.state[a], theirs.state[b]
        assert list(mine) == list(other), name
        for key in mine:
            assert torch.equal(local(mine[key]), local(other[key])), (name, key)
            assert isinstance(mine[key], DTensor) == isinstance(other[key], DTensor), (name, key)


def assert_same_tree(a, b, where=""):
    if isinstance(a, dict):
        assert set(a) == set(b), (where, set(a) ^ set(b))
        for key in a:
            assert_same_tree(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, torch.Tensor):
        assert a.shape == b.shape and torch.equal(local(a), local(b)), where
    else:
        assert a == b, where


def options(**fields):
    return StateDictOptions(**fields)


def bits(folder):
    all_settings = {"amsgrad": True, "weight_decay": 0.2, "maximize": True}
    for mixed, kind in ((False, {}), (True, all_settings)):
        nets = make_net(mixed), make_net(mixed)
        ours = AdamW(nets[0].parameters(), lr=1e-2, swap_optimizer_times=4, **kind)
        theirs = torch.optim.AdamW(nets[1].parameters(), lr=1e-2, fused=True, **kind)
        train(nets[0], ours, NUM_STEPS)
        train(nets[1], theirs, NUM_STEPS)
        assert_same(ours, theirs, *nets)
        assert ours.device_state_bytes() == 0
    state = ours.state[nets[0].up.weight]["exp_avg"]
    assert state.device_mesh.device_type == "sim" and state.to_local().device.type == "cpu"
    assert state.placements == nets[0].up.weight.placements
    if dist.get_rank() > 0:
        assert ours.state[nets[0].scale]["exp_avg"].to_local().numel() == 0
    assert ours.state[nets[0].scale]["exp_avg"].shape == (1,)


def masters(folder):
    """bfloat16 shards with float masters take the steps of float shards, rounded."""
    nets = make_net().bfloat16(), make_net().bfloat16()
    ours = AdamW(nets[0].parameters(), master_weights=True, lr=1e-2)
    resident = AdamW(nets[1].parameters(), master_weights=True, lr=1e-2, placement="device")
    train(nets[0], ours, 5)
    train(nets[1], resident, 5)
    assert_same(ours, resident, *nets)
    master = ours.state[nets[0].up.weight]["master_param"]
    assert master.dtype == torch.float32 and master.full_tensor().shape == (37, 16)


def tensor_parallel(folder):
    mesh = init_device_mesh("sim", (dist.get_world_size(),))

    def make():
        torch.manual_seed(0)
        net = torch.nn.Sequential()
        net.add_module("norm", torch.nn.LayerNorm(16))
        net.add_module("up", torch.nn.Linear(16, 32))
        net.add_module("act", torch.nn.GELU())
        net.add_module("down", torch.nn.Linear(32, 16))
        norm = SequenceParallel(sequence_dim=0)
        up = ColwiseParallel(input_layouts=norm.sequence_sharding[0])
        plan = {"norm": norm, "up": up, "down": RowwiseParallel()}
        return parallelize_module(net.to("sim"), mesh, plan)

    def run(net, optimizer):
        grads = set()
        for step in range(NUM_STEPS):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(8 // dist.get_world_size(), 16, generator=generator).to("sim")
            net(x).square().sum().backward()
            grads |= {str(p.grad.placements) for p in net.parameters()}
            optimizer.step()
            optimizer.zero_grad()
        return grads

    nets = make(), make()
    ours = AdamW(nets[0].parameters(), lr=1e-2)
    theirs = torch.optim.AdamW(nets[1].parameters(), lr=1e-2, fused=True)
    grads = run(nets[0], ours)
    run(nets[1], theirs)
    assert any("Partial" in placements for placements in grads), grads  # what must be summed first
    assert_same(ours, theirs, *nets)


def state_dicts(folder):
    nets = make_net(), make_net()
    ours = AdamW(nets[0].parameters(), lr=1e-2)
    theirs = torch.optim.AdamW(nets[1].parameters(), lr=1e-2, fused=True)
    train(nets[0], ours, 3)
    train(nets[1], theirs, 3)
    for fields in (
        {},
        {"full_state_dict": True},
        {"full_state_dict": True, "cpu_offload": True},
        {"cpu_offload": True},
        {"flatten_optimizer_state_dict": True},
    ):
        mine = get_optimizer_state_dict(nets[0], ours, options=options(**fields))
        other = get_optimizer_state_dict(nets[1], theirs, options=options(**fields))
        assert_same_tree(mine, other)
        # Each into a new one of the other kind, then on with the same bits.
        again = make_net(), make_net()
        ours_again = AdamW(again[0].parameters(), num_slots=4)
        theirs_again = torch.optim.AdamW(again[1].parameters(), fused=True)
        for net, optimizer, source in (
            (again[0], ours_again, other),
            (again[1], theirs_again, mine),
        ):
            set_model_state_dict(net, get_model_state_dict(nets[0]))
            # Whole states that are offloaded are on the first rank alone.
            sender = {"broadcast_from_rank0": True} if len(fields) == 2 else {}
            set_optimizer_state_dict(net, optimizer, source, options=options(**fields, **sender))
            train(net, optimizer, 3, first=3)
        assert_same(ours_again, theirs_again, *again)


def both(net, optimizer):
    return {
        "model": get_model_state_dict(net),
        "optimizer": get_optimizer_state_dict(
            net, optimizer, options=options(flatten_optimizer_state_dict=True)
        ),
    }


def load(net, optimizer, path):
    target = both(net, optimizer)
    dcp.load(target, checkpoint_id=path)
    set_model_state_dict(net, target["model"])
    set_optimizer_state_dict(
        net,
        optimizer,
        target["optimizer"],
        options=options(flatten_optimizer_state_dict=True),
    )


def full(net, optimizer):
    kind = options(full_state_dict=True, cpu_offload=True)
    return {
        "model": get_model_state_dict(net, options=kind),
        "optimizer": get_optimizer_state_dict(net, optimizer, options=kind).get("state"),
    }


def checkpoints(folder):
    net, other_net = make_net(), make_net()
    ours = AdamW(net.parameters(), lr=1e-2, amsgrad=True)
    train(net, ours, 3)
    before = swapline.sim.counters()
    dcp.save(both(net, ours), checkpoint_id=folder / "ours")
    after = swapline.sim.counters()
    # The model's shards are read from the device, the states from where they are.
    assert after["num_copies_in"] == before["num_copies_in"]
    assert after["num_copies_out"] - before["num_copies_out"] <= 3 * len(list(net.parameters()))
    theirs = torch.optim.AdamW(other_net.parameters(), amsgrad=True, fused=True)
    load(other_net, theirs, folder / "ours")
    reference = full(net, ours)
    if dist.get_rank() == 0:
        torch.save(reference, folder / "full.pt")
    train(net, ours, 3, first=3)
    train(other_net, theirs, 3, first=3)
    assert_same(ours, theirs, net, other_net)
    dcp.save(both(other_net, theirs), checkpoint_id=folder / "theirs")
    back_net = make_net()
    back = AdamW(back_net.parameters(), amsgrad=True, swap_optimizer_times=2)
    moments = back.state_dict  # a bound method: the target is asked for anew by load()
    load(back_net, back, folder / "theirs")
    assert moments()["state"]
    train(net, ours, 3, first=6)
    train(back_net, back, 3, first=6)
    assert_same(back, ours, back_net, net)


def async_saves(folder):
    """What later steps do is not in a checkpoint that is being written."""
    net = make_net()
    ours = AdamW(net.parameters(), lr=1e-2)
    train(net, ours, 2)
    kinds = {
        "thread": {},
        "process": {"async_checkpointer_type": AsyncCheckpointerType.PROCESS},
        "staged": {
            "async_stager": DefaultStager(
                StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=False,
                    use_async_staging=True,
                    use_non_blocking_copy=False,
                )
            )
        },
    }
    group = dist.new_group(backend="gloo")
    expected, pending = {}, {}
    step = 2
    for name, kind in kinds.items():
        # A copy: offloading makes none of what is on the CPU already.
        expected[name] = copy.deepcopy(full(net, ours))
        started = dcp.async_save(
            both(net, ours), checkpoint_id=folder / name, process_group=group, **kind
        )
        if name == "staged":
            started.staging_completion.result()  # torch's contract: before the next step
            pending[name] = started.upload_completion
        else:
            pending[name] = started
        train(net, ours, 2, first=step)
        step += 2
        pending[name].result()
    for name in kinds:
        again_net = make_net()
        again = AdamW(again_net.parameters())
        load(again_net, again, folder / name)
        assert_same_tree(full(again_net, again), expected[name], name)


def reshard(folder):
    """What two ranks have written, on any number of ranks, and back."""
    reference = torch.load(folder / "full.pt", weights_only=True)
    net = make_net()
    ours = AdamW(net.parameters(), amsgrad=True)
    load(net, ours, folder / "ours")
    assert ours.param_groups[0]["lr"] == 1e-2
    assert_same_tree(full(net, ours), reference) if dist.get_rank() == 0 else full(net, ours)
    dcp.save(both(net, ours), checkpoint_id=folder / f"from_{dist.get_world_size()}")


def goes_on(folder):
    """On with the same bits as torch.optim from what two ranks have written."""
    net, other_net = make_net(), make_net()
    ours = AdamW(net.parameters(), amsgrad=True)
    theirs = torch.optim.AdamW(other_net.parameters(), amsgrad=True, fused=True)
    load(net, ours, folder / "ours")
    load(other_net, theirs, folder / "ours")
    train(net, ours, 3)
    train(other_net, theirs, 3)
    assert_same(ours, theirs, net, other_net)


def resharded(folder):
    reference = torch.load(folder / "full.pt", weights_only=True)
    for world in (1, 4):
        net = make_net()
        ours = AdamW(net.parameters(), amsgrad=True)
        load(net, ours, folder / f"from_{world}")
        result = full(net, ours)
        if dist.get_rank() == 0:
            assert_same_tree(result, reference)


def experts(folder):
    """[E, m, n] sharded in E: each rank's matrices are whole."""
    mesh = init_device_mesh("sim", (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randn(5, 16, 12, generator=generator).to("sim") for _ in range(4)]
    shards = [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in whole]
    param = torch.nn.Parameter(shards[0])
    alone = shards[0].to_local().clone().requires_grad_()
    ours, plain = Muon([param], lr=0.1), Muon([alone], lr=0.1)
    for grad in shards[1:]:
        param.grad, alone.grad = grad, grad.to_local()
        ours.step()
        plain.step()
    assert torch.equal(local(param), local(alone))
    momentum = ours.state[param]["momentum_buffer"]
    assert momentum.shape == (5, 16, 12) and momentum.placements == (Shard(0),)
    assert torch.equal(momentum.to_local(), plain.state[alone]["momentum_buffer"])


def refused(folder):
    net = make_net()
    try:
        Muon(net.up.parameters())
    except ValueError as error:
        assert "Muon updates whole matrices" in str(error), error
    else:
        raise AssertionError("a sharded matrix was not refused")
    ours = AdamW(net.parameters())
    train(net, ours, 1)
    rest = ours.state_dict()
    rest["state"] = {key: dict(value) for key, value in rest["state"].items()}
    rest["state"][1]["exp_avg"] = torch.zeros(37, 16)
    try:
        ours.load_state_dict(rest)
    except ValueError as error:
        assert "set_optimizer_state_dict" in str(error), error
    else:
        raise AssertionError("a whole tensor was taken for a shard")
    train(net, ours, 1, first=1)


def main():
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    torch.set_num_threads(1)
    swapline.sim.configure("tiny", late_copies=True, watch_host_ops=True)
    store = dist.FileStore(str(folder / f"store_{world}_{'_'.join(sys.argv[4:])}"), world)
    dist.init_process_group(
        "cpu:gloo,sim:swapline",
        store=store,
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=30),
    )
    for job in sys.argv[4:]:
        start = time.monotonic()
        globals()[job](folder)
        races = swapline.sim.num_races()
        assert races == 0, swapline.sim.races()[0]
        print(f"{job}: {time.monotonic() - start:.1f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
