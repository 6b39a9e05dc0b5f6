"""Checkpoints of one process: exchanged with torch.optim both ways, loaded whole or not at all."""

import io

import pytest
import torch
from optim_support import assert_same, make_params, set_grads, train

import swapline
from swapline.optim import Adam, AdamW


def saved(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same_params(source, target):
    with torch.no_grad():
        for a, b in zip(source, target):
            b.copy_(a)


@pytest.mark.parametrize(
    "ours, theirs", [(AdamW, torch.optim.AdamW), (Adam, torch.optim.Adam)], ids=["AdamW", "Adam"]
)
@pytest.mark.parametrize("direction", ["to torch", "from torch"])
def test_exchange(ours, theirs, direction):
    groups = [{"lr": 1e-2, "amsgrad": True}, {"weight_decay": 0.2, "betas": (0.8, 0.9)}]

    def make(kind, **options):
        params = make_params()
        pairs = zip(groups, (params[:3], params[3:]))
        return kind([{"params": part, **group} for group, part in pairs], **options), params

    first, first_params = make(ours) if direction == "to torch" else make(theirs, fused=True)
    train(first, first_params, 3, without=lambda step: {0})
    # Made with nothing of the first one's settings.
    second_params = make_params()
    halves = [{"params": second_params[:3]}, {"params": second_params[3:]}]
    second = (
        theirs(halves, fused=True)
        if direction == "to torch"
        else ours(halves, swap_optimizer_times=4, num_slots=4)
    )
    second.load_state_dict(saved(first.state_dict()))
    same_params(first_params, second_params)
    train(first, first_params, 4, first=3)
    train(second, second_params, 4, first=3)
    assert_same(second, first, second_params, first_params)
    keys = [set(group) for group in first.param_groups]
    assert keys == [set(group) for group in second.param_groups]
    assert second.param_groups[0]["fused"] is True


def test_default_flags_say_which_kernel_it_is():
    ours = AdamW(make_params())
    assert ours.param_groups[0]["fused"] is True and ours.defaults["fused"] is True
    ours.load_state_dict(torch.optim.AdamW(make_params(), foreach=True).state_dict())
    assert ours.param_groups[0]["fused"] is True and ours.param_groups[0]["foreach"] is None


@pytest.mark.parametrize("options", [{"state_dtype": torch.bfloat16}, {"master_weights": True}])
def test_options_come_back(options):
    params, again_params = make_params(torch.bfloat16), make_params(torch.bfloat16)
    ours = AdamW(params, **options)
    train(ours, params, 3)
    again = AdamW(again_params, **options)
    again.load_state_dict(saved(ours.state_dict()))
    same_params(params, again_params)
    train(ours, params, 3, first=3)
    train(again, again_params, 3, first=3)
    assert_same(again, ours, again_params, params)


def test_masters_begin_as_the_parameters_where_a_checkpoint_has_none():
    params, stock_params = make_params(torch.bfloat16), make_params(torch.bfloat16)
    theirs = torch.optim.AdamW(stock_params, fused=True)
    train(theirs, stock_params, 2)
    ours = AdamW(params, master_weights=True)
    ours.load_state_dict(theirs.state_dict())
    same_params(stock_params, params)
    for param in params:  # loaded before the parameters were
        ours.state[param]["master_param"].copy_(param.detach())
    assert ours.state[params[0]]["exp_avg"].dtype == torch.float32
    again = AdamW(make_params(torch.bfloat16), master_weights=True)
    again.load_state_dict(theirs.state_dict())
    for param in again.param_groups[0]["params"]:
        assert torch.equal(again.state[param]["master_param"], param.detach().float().cpu())


def test_masters_are_not_lost_silently():
    ours = AdamW(make_params(torch.bfloat16), master_weights=True)
    train(ours, ours.param_groups[0]["params"], 1)
    with pytest.raises(ValueError, match="master_weights=True"):
        AdamW(make_params(torch.bfloat16)).load_state_dict(ours.state_dict())


def test_loading_copies():
    params = make_params()
    ours = AdamW(params)
    train(ours, params, 2)
    checkpoint = saved(ours.state_dict())
    before = checkpoint["state"][0]["exp_avg"].clone()
    ours.load_state_dict(checkpoint)
    train(ours, params, 1, first=2)
    ours.drain()
    assert torch.equal(checkpoint["state"][0]["exp_avg"], before)
    assert checkpoint["state"][0]["step"] == 2


def test_a_checkpoint_of_fewer_states_begins_the_others_anew():
    params, stock_params = make_params(), make_params()
    ours, theirs = AdamW(params), torch.optim.AdamW(stock_params, fused=True)
    train(ours, params, 2, without=lambda step: {0, 3})
    checkpoint = saved(ours.state_dict())
    train(ours, params, 2)  # all have states now
    ours.load_state_dict(checkpoint)
    theirs.load_state_dict(checkpoint)
    same_params(params, stock_params)
    assert params[0] not in ours.state
    train(ours, params, 2, first=4)
    train(theirs, stock_params, 2, first=4)
    assert ours.state[params[0]]["step"] == 2
    for a, b in zip(params, stock_params):
        assert torch.equal(a.cpu(), b.cpu())


def test_amsgrad_comes_with_the_checkpoint():
    params, stock_params = make_params(), make_params()
    theirs = torch.optim.AdamW(stock_params, amsgrad=True, fused=True)
    train(theirs, stock_params, 2)
    ours = AdamW(params)
    train(ours, params, 1)
    ours.load_state_dict(theirs.state_dict())
    same_params(stock_params, params)
    train(ours, params, 2, first=2)
    train(theirs, stock_params, 2, first=2)
    assert_same(ours, theirs, params, stock_params)


def broken(change):
    params = make_params()
    other = AdamW(params)
    train(other, params, 1)
    state_dict = saved(other.state_dict())
    change(state_dict)
    return state_dict


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda sd: sd["param_groups"].append(sd["param_groups"][0]), "2 parameter groups.* 1"),
        (lambda sd: sd["param_groups"][0]["params"].pop(), "has 7 parameters.* 8"),
        (lambda sd: sd["state"][4].pop("exp_avg_sq"), r"\(33, 7\).* has no exp_avg_sq, only step"),
        (lambda sd: sd["state"][4].update(exp_avg=torch.zeros(2)), r"exp_avg of .*\(2,\)"),
        (lambda sd: sd["state"][4].update(exp_avg=None), "exp_avg of .* must be a tensor"),
        (lambda sd: sd["state"][4].update(step=torch.zeros(2)), "step of .* must be one number"),
    ],
)
def test_what_does_not_fit_changes_nothing(change, message):
    params, stock_params = make_params(), make_params()
    ours, theirs = AdamW(params), torch.optim.AdamW(stock_params, fused=True)
    train(ours, params, 2)
    train(theirs, stock_params, 2)
    with pytest.raises((ValueError, TypeError), match=message):
        ours.load_state_dict(broken(change))
    train(ours, params, 2, first=2)
    train(theirs, stock_params, 2, first=2)
    assert_same(ours, theirs, params, stock_params)


def test_hooks_of_state_dict_and_load_state_dict():
    params = make_params()
    ours = AdamW(params)
    train(ours, params, 1)
    calls = []

    def after(optimizer, state_dict):
        calls.append("after")
        return {**state_dict, "mine": 1}

    def before_load(optimizer, state_dict):
        calls.append("before load")
        assert state_dict.pop("mine") == 1
        state_dict["param_groups"][0]["lr"] = 0.5
        return state_dict

    ours.register_state_dict_pre_hook(lambda optimizer: calls.append("before"))
    ours.register_state_dict_post_hook(after)
    ours.register_load_state_dict_pre_hook(before_load)
    ours.register_load_state_dict_post_hook(lambda optimizer: calls.append("after load"))
    ours.load_state_dict(ours.state_dict())
    assert calls == ["before", "after", "before load", "after load"]
    assert ours.param_groups[0]["lr"] == 0.5


def test_no_room_says_so_before_anything_is_changed():
    params = make_params()
    small = swapline.SwapContext("sim:0", max_host_bytes=64 << 10, slab_bytes=64 << 10)
    ours = AdamW(params[4:6], context=small)
    train(ours, params[4:6], 1)
    with pytest.raises(swapline.HostMemoryError, match=r"SwapContext\(max_host_bytes"):
        ours.add_param_group({"params": [torch.zeros(1 << 16, device="sim", requires_grad=True)]})
    assert len(ours.param_groups) == 1
    train(ours, params[4:6], 1, first=1)
    assert ours.state[params[4]]["step"] == 2


def test_steps_keep_what_was_prefetched_out_of_a_load():
    params = make_params()
    ours = AdamW(params)
    train(ours, params, 2)
    checkpoint = saved(ours.state_dict())
    set_grads(params, 2)
    ours.prefetch()
    ours.load_state_dict(checkpoint)
    twin_params = make_params()
    twin = AdamW(twin_params)
    same_params(params, twin_params)
    twin.load_state_dict(checkpoint)
    ours.step()
    train(twin, twin_params, 1, first=2)
    assert_same(twin, ours, twin_params, params)
