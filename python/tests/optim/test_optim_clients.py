"""What training loops do around an optimizer works as with torch.optim's."""

import copy

import pytest
import torch
from optim_support import DEVICE, assert_same, copies, make_params, set_grads, train
from torch.optim import lr_scheduler as schedules
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import swapline.sim
from swapline.optim import Adam, AdamW, Muon


def pair(kind=AdamW, stock=torch.optim.AdamW, **options):
    params, stock_params = make_params(), make_params()
    return kind(params, **options), stock(stock_params, fused=True, **options), params, stock_params


SCHEDULES = {
    "step": lambda o: schedules.StepLR(o, 2, 0.5),
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 5),
    "one cycle": lambda o: schedules.OneCycleLR(o, max_lr=0.1, total_steps=12),
    "cyclic": lambda o: schedules.CyclicLR(o, 1e-4, 1e-2, 3, cycle_momentum=True),
    "warm up, then decay": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1), schedules.ExponentialLR(o, 0.9)], [4]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    made = pair(lr=1e-2)
    for optimizer, params in ((made[0], made[2]), (made[1], made[3])):
        schedule = SCHEDULES[name](optimizer)
        for step in range(10):
            train(optimizer, params, 1, first=step)
            schedule.step()
    assert_same(*made)
    assert made[0].param_groups[0]["lr"] == made[1].param_groups[0]["lr"]
    assert made[0].param_groups[0]["betas"] == made[1].param_groups[0]["betas"]


def test_schedule_by_a_metric_and_its_checkpoint():
    made = pair(lr=1e-2)
    for optimizer, params in ((made[0], made[2]), (made[1], made[3])):
        schedule = schedules.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
        for step in range(8):
            train(optimizer, params, 1, first=step)
            schedule.step(1.0)
            if step == 4:
                state = schedule.state_dict()
                schedule = schedules.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
                schedule.load_state_dict(state)
    assert_same(*made)
    assert made[0].param_groups[0]["lr"] < 1e-2


@pytest.mark.parametrize("where", ["cpu", "sim"])
def test_tensor_lr(where):
    made = pair()
    for optimizer, params in ((made[0], made[2]), (made[1], made[3])):
        optimizer.param_groups[0]["lr"] = torch.tensor(1e-2, device=where)
        for step in range(6):
            if step == 2:
                optimizer.param_groups[0]["lr"].mul_(0.3)  # in place
            if step == 4:
                optimizer.param_groups[0]["lr"] = torch.tensor(5e-3, device=where)
            train(optimizer, params, 1, first=step)
    assert_same(*made)


def test_settings_changed_by_hand():
    made = pair()
    for optimizer, params in ((made[0], made[2]), (made[1], made[3])):
        train(optimizer, params, 2)
        optimizer.param_groups[0].update(lr=0.1, weight_decay=0.5, eps=1e-4, maximize=True)
        train(optimizer, params, 2, first=2)
    assert_same(*made)


def scaled_steps(optimizer, params, scaler, num_steps=8):
    for step in range(num_steps):
        set_grads(params, step)
        scale = scaler.scale(torch.ones((), device=DEVICE))
        for param in params:
            param.grad.mul_(scale)
        if step == 3:
            params[0].grad.view(-1)[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_grad_scaler():
    ours, theirs, params, stock_params = pair()
    assert ours._step_supports_amp_scaling
    scaled_steps(ours, params, torch.amp.GradScaler("sim", init_scale=256.0))
    scaled_steps(theirs, stock_params, torch.amp.GradScaler("sim", init_scale=256.0))
    assert_same(ours, theirs, params, stock_params)
    assert ours.state[params[0]]["step"] == 7  # the step with an inf is none


def test_scaling_makes_the_host_wait_for_nothing():
    """The device decides whether the step counts: the host's clock stays behind the device's."""
    params = make_params(sizes=((256, 256),), transposed=False)
    ours = AdamW(params)
    set_grads(params, 0)
    ours.step()
    assert ours._step_supports_amp_scaling  # tried once, for which the host waits
    ours.drain()
    ours.grad_scale = torch.full((), 2.0, device=DEVICE)
    ours.found_inf = torch.zeros((), device=DEVICE)
    before = copies()
    from swapline import _sim

    start = _sim.host_time(0)
    with swapline.sim.faults(copy_slowdown=1000.0):
        ours.step()
    waited = _sim.host_time(0) - start
    ours.drain()
    assert waited * 20 < _sim.host_time(0) - start
    stats = ours.stats()
    # The counts of steps went to the device once, and came back with drain().
    assert copies() - before <= 4 * stats["num_chunks"] + 3
    assert ours.state[params[0]]["step"] == 2


def test_foreach_leaves_scaling_to_the_scaler():
    params, stock_params = make_params(), make_params()
    ours = AdamW(params, foreach=True)
    theirs = torch.optim.AdamW(stock_params, foreach=True)
    assert not ours._step_supports_amp_scaling
    scaled_steps(ours, params, torch.amp.GradScaler("sim", init_scale=256.0))
    scaled_steps(theirs, stock_params, torch.amp.GradScaler("sim", init_scale=256.0))
    assert_same(ours, theirs, params, stock_params)


def test_closure_is_called_once_with_gradients():
    made = pair()
    calls = []
    for optimizer, params in ((made[0], made[2]), (made[1], made[3])):

        def closure(optimizer=optimizer, params=params):
            calls.append(torch.is_grad_enabled())
            optimizer.zero_grad()
            loss = sum((p * p).sum() for p in params)
            loss.backward()
            return loss

        for _ in range(4):
            assert optimizer.step(closure).requires_grad
    assert calls == [True] * 8
    assert_same(*made)


@pytest.mark.parametrize("kind", [AdamW, Adam, Muon])
def test_hooks_run_once(kind):
    params = make_params(sizes=((16, 16),), transposed=False)
    optimizer = kind(params)
    calls = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("global before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("global after")),
        optimizer.register_step_pre_hook(lambda o, args, kwargs: calls.append("before")),
        optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append("after")),
    ]
    set_grads(params, 0)
    optimizer.step()
    expected = ["global before", "before", "after", "global after"]
    assert calls == expected
    copy.deepcopy(optimizer)
    kind(make_params(sizes=((16, 16),), transposed=False))  # another changes nothing
    optimizer.step()
    assert calls == 2 * expected
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert calls == 2 * expected


def test_a_hook_that_throws_keeps_the_step_from_being_done():
    ours, theirs, params, stock_params = pair()
    train(ours, params, 1)
    train(theirs, stock_params, 1)

    def refuse(optimizer, args, kwargs):
        raise KeyError("not now")

    handle = ours.register_step_pre_hook(refuse)
    set_grads(params, 1)
    with pytest.raises(KeyError, match="not now"):
        ours.step()
    handle.remove()
    ours.step()
    train(theirs, stock_params, 1, first=1)
    assert_same(ours, theirs, params, stock_params)


def test_subclasses_and_profiler_names():
    class Mine(AdamW):
        def step(self, closure=None):
            self.num_calls = getattr(self, "num_calls", 0) + 1
            return super().step(closure)

    params = make_params()
    mine = Mine(params)
    set_grads(params, 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        mine.step()
        mine.zero_grad()
    names = [event.name for event in profile.events()]
    assert names.count("Optimizer.step#Mine.step") >= 1 and mine.num_calls == 1
    assert "Optimizer.zero_grad#Mine.zero_grad" in names
    assert repr(mine).startswith("Mine (\nParameter Group 0\n")


def test_groups_and_layers_that_come_later():
    made = pair()
    late, stock_late = (make_params(seed=9) for _ in range(2))
    for optimizer, params, later in ((made[0], made[2], late), (made[1], made[3], stock_late)):
        params[0].requires_grad_(False)
        train(optimizer, params, 2, without=lambda step: {0})
        optimizer.add_param_group({"params": later[:4], "lr": 0.1, "amsgrad": True})
        train(optimizer, params + later[:4], 2, first=2, without=lambda step: {0})
        params[0].requires_grad_(True)  # unfrozen
        optimizer.add_param_group({"params": later[4:]})
        train(optimizer, params + later, 3, first=4)
    assert_same(made[0], made[1], made[2] + late, made[3] + stock_late)


def test_a_frozen_parameter_gets_states_when_it_is_unfrozen():
    params, stock_params = make_params(), make_params()
    for param in (params[0], stock_params[0]):
        param.requires_grad_(False)
    ours, theirs = AdamW(params), torch.optim.AdamW(stock_params, fused=True)
    small = ours.stats()["state_bytes"]
    for optimizer, own in ((ours, params), (theirs, stock_params)):
        train(optimizer, own, 2, without=lambda step: {0})
        own[0].requires_grad_(True)
        train(optimizer, own, 2, first=2)
    assert ours.stats()["state_bytes"] == small + 8 * params[0].numel()
    assert_same(ours, theirs, params, stock_params)


def test_other_parameters_put_into_a_group():
    """As libraries do that replace a model's parameters after the optimizer was made."""
    made = pair()
    others = [make_params(seed=4), make_params(seed=4)]
    for optimizer, params, other in ((made[0], made[2], others[0]), (made[1], made[3], others[1])):
        train(optimizer, params, 2)
        optimizer.param_groups[0]["params"] = params[:3] + other[3:]
        train(optimizer, params[:3] + other[3:], 2, first=2)
    for i in (0, 1):
        made[i + 2][3:] = others[i][3:]
    assert_same(*made)


def test_group_on_another_device():
    params = make_params()
    ours = AdamW(params)
    train(ours, params, 2)
    before = ours.state[params[0]]["exp_avg"].clone()
    more = [torch.ones(100, device="sim:1", requires_grad=True)]
    ours.add_param_group({"params": more})
    assert torch.equal(ours.state[params[0]]["exp_avg"], before)
    train(ours, params + more, 1, first=2)
    assert ours.state[params[0]]["step"] == 3 and ours.state[more[0]]["step"] == 1


class Net(torch.nn.Module):
    """With an embedding that is tied to the head."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(40, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.head = torch.nn.Linear(24, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(torch.tanh(self.embed(tokens))))


def train_net(make_optimizer, wrap=lambda net: net):
    torch.manual_seed(0)
    net = Net().to(DEVICE)
    optimizer = make_optimizer(list(net.parameters()) + [net.head.weight])
    called = wrap(net)
    tokens = torch.arange(36, device=DEVICE).view(4, 9) % 40
    for _ in range(6):
        logits = called(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_model_with_tied_weights():
    ours, ours_optimizer = train_net(lambda ps: AdamW(ps, lr=1e-2))
    theirs, _ = train_net(lambda ps: torch.optim.AdamW(ps[:-1], lr=1e-2, fused=True))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    assert len(ours_optimizer.state) == 3


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_compiled_model():
    def wrap(net):
        return torch.compile(net, backend="aot_eager")

    ours, _ = train_net(lambda ps: AdamW(ps, lr=1e-2), wrap)
    theirs, _ = train_net(lambda ps: torch.optim.AdamW(ps[:-1], lr=1e-2, fused=True), wrap)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_a_parameter_in_two_optimizers_has_states_in_each():
    made = pair(lr=1e-2)
    ours_too = AdamW(made[2][:2], lr=1e-3)
    theirs_too = torch.optim.AdamW(made[3][:2], lr=1e-3, fused=True)
    for step in range(4):
        for params in made[2:]:
            set_grads(params, step)
        for optimizer in (made[0], made[1], ours_too, theirs_too):
            optimizer.step()
    assert_same(*made)
    assert_same(ours_too, theirs_too, made[2][:2], made[3][:2])


def test_in_place_updates_are_seen_by_autograd():
    params = make_params()
    ours = AdamW(params)
    kept = (params[0] * params[0]).sum()  # saves the parameter for backward
    set_grads(params, 0)
    ours.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_zero_grad_both_ways():
    params = make_params()
    ours = AdamW(params)
    set_grads(params, 0)
    ours.zero_grad(set_to_none=False)
    assert all(param.grad.abs().sum() == 0 for param in params)
    ours.zero_grad()
    assert all(param.grad is None for param in params)
    ours.step()
    assert not ours.state
