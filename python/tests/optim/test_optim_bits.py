"""The bits are torch.optim's, whatever the options and however the states move."""

import pytest
import torch
from optim_support import DEVICE, assert_same, make_params, now_and_then, set_grads, train

import swapline
import swapline.sim
from swapline.optim import Adam, AdamW

HYPERPARAMETERS = {
    "plain": {},
    "amsgrad": {"amsgrad": True},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "all": {
        "amsgrad": True,
        "maximize": True,
        "weight_decay": 0.3,
        "betas": (0.8, 0.95),
        "eps": 1e-6,
    },
}


def pair(ours, theirs, dtype=torch.float32, groups=None, stock=None, **options):
    """Two optimizers of two times the same parameters. `groups`: what to make of parameters."""
    groups = groups or (lambda params: params)
    params, stock_params = make_params(dtype), make_params(dtype)
    stock = {"fused": True} if stock is None else stock
    hyperparameters = options.pop("hyperparameters", {})
    return (
        ours(groups(params), **hyperparameters, **options),
        theirs(groups(stock_params), **hyperparameters, **stock),
        params,
        stock_params,
    )


def check(made, num_steps=20):
    ours, theirs, params, stock_params = made
    train(ours, params, num_steps, without=now_and_then)
    train(theirs, stock_params, num_steps, without=now_and_then)
    assert_same(ours, theirs, params, stock_params)
    assert ours.device_state_bytes() == 0
    return ours


@pytest.mark.parametrize("name", HYPERPARAMETERS)
@pytest.mark.parametrize(
    "ours, theirs", [(AdamW, torch.optim.AdamW), (Adam, torch.optim.Adam)], ids=["AdamW", "Adam"]
)
def test_hyperparameters(ours, theirs, name):
    check(pair(ours, theirs, hyperparameters=HYPERPARAMETERS[name]))


@pytest.mark.parametrize("times", [1, 4, 16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_times(times, dtype):
    options = {"swap_optimizer_times": times, "copy_latency_s": 1e-9}  # many small chunks
    if times == 64:
        with pytest.warns(UserWarning, match="swap_optimizer_times 64"):
            made = pair(AdamW, torch.optim.AdamW, dtype, **options)
    else:
        made = pair(AdamW, torch.optim.AdamW, dtype, **options)
    ours = check(made)
    # Copies are those of the chunks, whatever the number of tensors.
    stats = ours.stats()
    assert 0 < stats["num_copies_in"] <= 20 * 2 * stats["num_chunks"]


def test_several_groups():
    def groups(params):
        return [
            {"params": params[:3], "lr": 1e-2},
            {"params": params[3:5], "weight_decay": 0.5, "amsgrad": True},
            {"params": params[5:], "betas": (0.5, 0.7), "maximize": True},
        ]

    check(pair(AdamW, torch.optim.AdamW, groups=groups))


def test_foreach_bits():
    check(pair(AdamW, torch.optim.AdamW, stock={"foreach": True}, foreach=True))


def test_fraction_keeps_a_part_on_the_device():
    made = pair(AdamW, torch.optim.AdamW, swap_optimizer_fraction=0.5, copy_latency_s=1e-9)
    ours, theirs, params, stock_params = made
    train(ours, params, 20)
    kept, all_bytes = ours.device_state_bytes(), ours.stats()["state_bytes"]
    assert 0.3 * all_bytes < kept <= 0.5 * all_bytes + 4096  # padding of chunks
    train(theirs, stock_params, 20)
    assert_same(ours, theirs, params, stock_params)
    assert ours.device_state_bytes() == 0  # reading states drains


def test_small_states_stay_on_the_device():
    made = pair(AdamW, torch.optim.AdamW, swap_optimizer_min_bytes=1024)
    ours, theirs, params, stock_params = made
    train(ours, params, 20)
    train(theirs, stock_params, 20)
    assert_same(ours, theirs, params, stock_params)
    where = {p.numel(): ours.state[p]["exp_avg"].device.type for p in params if p.numel() > 0}
    assert where[64 * 48] == "cpu" and where[48] == "sim" and where[1] == "sim"
    assert ours.device_state_bytes() == 8 * (48 + 1 + 1)


@pytest.mark.parametrize("size", [4096 / 2**30, "all"])
def test_mapped_states_are_not_copied(size):
    made = pair(AdamW, torch.optim.AdamW, virtual_optimizer_size=size)
    ours = check(made)
    stats = ours.stats()
    assert stats["mapped_bytes"] == (stats["state_bytes"] if size == "all" else 4096)
    if size == "all":
        assert stats["num_copies_in"] == stats["num_copies_out"] == 0
        assert swapline.sim.counters()["mapped_bytes_in"] > 0


def test_on_the_device():
    made = pair(AdamW, torch.optim.AdamW, placement="device")
    ours, theirs, params, stock_params = made
    train(ours, params, 20, without=now_and_then)
    train(theirs, stock_params, 20, without=now_and_then)
    assert ours.device_state_bytes() == ours.stats()["state_bytes"] > 0
    assert ours.state[params[0]]["exp_avg"].device.type == "sim"
    assert_same(ours, theirs, params, stock_params)


def test_state_dtype_is_the_resident_optimizers_with_it():
    params, resident_params = make_params(), make_params()
    ours = AdamW(params, state_dtype=torch.bfloat16)
    resident = AdamW(resident_params, state_dtype=torch.bfloat16, placement="device")
    train(ours, params, 20, without=now_and_then)
    train(resident, resident_params, 20, without=now_and_then)
    assert ours.state[params[0]]["exp_avg"].dtype == torch.bfloat16
    assert_same(ours, resident, params, resident_params)


def test_master_weights_are_float_training_rounded():
    """A bfloat16 parameter with a master takes the steps of torch.optim on a float copy."""
    params = make_params(torch.bfloat16)
    ours = AdamW(params, master_weights=True)
    float_params = [p.detach().float().requires_grad_() for p in make_params(torch.bfloat16)]
    theirs = torch.optim.AdamW(float_params, fused=True)
    for step in range(20):
        set_grads(params, step)
        for param, other in zip(params, float_params):
            other.grad = param.grad.float()
        ours.step()
        theirs.step()
    for param, other in zip(params, float_params):
        state = ours.state[param]
        assert torch.equal(state["master_param"], other.detach().cpu())
        assert torch.equal(param.detach().cpu(), other.detach().bfloat16().cpu())
        assert torch.equal(state["exp_avg"], theirs.state[other]["exp_avg"].cpu())


def test_steps_without_a_wait_and_with_prefetch():
    """The host runs ahead of the device over all steps."""
    ours, theirs, params, stock_params = pair(AdamW, torch.optim.AdamW, copy_latency_s=1e-9)
    for step in range(20):
        set_grads(params, step)
        if step % 2:
            ours.prefetch()
        ours.step()
    train(theirs, stock_params, 20)
    assert_same(ours, theirs, params, stock_params)


def test_two_devices():
    def two(params):
        return [p.detach().to(f"sim:{i % 2}").requires_grad_() for i, p in enumerate(params)]

    params, stock_params = two(make_params()), two(make_params())
    ours = AdamW(params, amsgrad=True)
    theirs = torch.optim.AdamW(stock_params, amsgrad=True, fused=True)
    train(ours, params, 20)
    train(theirs, stock_params, 20)
    assert_same(ours, theirs, params, stock_params)


def test_one_context_for_several_optimizers():
    context = swapline.SwapContext(DEVICE, like=swapline.sim.context_options())
    params, stock_params = make_params(), make_params()
    halves = [(params[:4], stock_params[:4]), (params[4:], stock_params[4:])]
    ours = [AdamW(mine, context=context) for mine, _ in halves]
    theirs = [torch.optim.AdamW(other, fused=True) for _, other in halves]
    for step in range(20):
        set_grads(params, step)
        set_grads(stock_params, step)
        for optimizer in ours + theirs:
            optimizer.step()
    for a, b, (mine, other) in zip(ours, theirs, halves):
        assert_same(a, b, mine, other)
    assert context.host_stats()["requested_bytes"] >= sum(o.stats()["state_bytes"] for o in ours)
    assert swapline.sim.memory()["peak_bytes_by_kind"]["optimizer_states"] > 0
