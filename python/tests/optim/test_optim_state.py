"""optimizer.state: true when read, writable in the ways that users of torch.optim write it."""

import copy
import pickle
from collections import defaultdict

import pytest
import torch
from optim_support import assert_same, copies, make_params, set_grads, train

import swapline.sim
from swapline.optim import Adam, AdamW


def pair():
    params, stock_params = make_params(), make_params()
    ours = AdamW(params, amsgrad=True, copy_latency_s=1e-9)
    return ours, torch.optim.AdamW(stock_params, amsgrad=True, fused=True), params, stock_params


def both(made, change, num_steps=3, first=3):
    """The same change of both, then further steps."""
    ours, theirs, params, stock_params = made
    train(ours, params, 3)
    train(theirs, stock_params, 3)
    change(ours, params)
    change(theirs, stock_params)
    train(ours, params, num_steps, first=first)
    train(theirs, stock_params, num_steps, first=first)
    assert_same(ours, theirs, params, stock_params)


def test_none_before_the_first_step():
    ours, _, params, _ = pair()
    assert len(ours.state) == 0 and not ours.state
    set_grads(params, 0, without={0})
    ours.step()
    assert params[0] not in ours.state and len(ours.state) == len(params) - 1
    assert ours.state_dict()["state"].keys() == set(range(1, len(params)))


def test_keys_kinds_and_layout():
    ours, _, params, _ = pair()
    train(ours, params, 1)
    for param in params:
        state = ours.state[param]
        assert list(state) == ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        assert state["step"].dtype == torch.float32 and state["step"].shape == ()
        for name in list(state)[1:]:
            assert state[name].device.type == "cpu"
            assert state[name].shape == param.shape and state[name].stride() == param.stride()


def test_the_same_objects_over_all_steps():
    ours, _, params, _ = pair()
    train(ours, params, 1)
    entry = ours.state[params[0]]
    moments = entry["exp_avg"]
    before = moments.clone()
    train(ours, params, 1, first=1)
    assert ours.state[params[0]] is entry and entry["exp_avg"] is moments
    assert entry["step"] == 2 and not torch.equal(moments, before)


def test_writing_into_it():
    def change(optimizer, params):
        optimizer.state[params[0]]["exp_avg"].zero_()
        optimizer.state[params[7]]["exp_avg_sq"].mul_(2)
        optimizer.state[params[4]]["step"].fill_(10)

    both(pair(), change)


def test_writing_after_prefetch():
    made = pair()
    ours, theirs, params, stock_params = made
    train(ours, params, 2)
    train(theirs, stock_params, 2)
    set_grads(params, 2)
    ours.prefetch()
    ours.state[params[0]]["exp_avg"].zero_()  # drops what was prefetched
    ours.step()
    theirs.state[stock_params[0]]["exp_avg"].zero_()
    train(theirs, stock_params, 1, first=2)
    assert_same(ours, theirs, params, stock_params)


def test_putting_other_tensors_in_place():
    def change(optimizer, params):
        state = optimizer.state[params[0]]
        state["exp_avg"] = torch.ones_like(params[0], device=state["exp_avg"].device)
        state["step"] = torch.tensor(7.0, device=state["step"].device)

    made = pair()
    both(made, change)
    ours, _, params, _ = made
    # What is shown is the engine's own memory again.
    ours.state[params[0]]["exp_avg"].zero_()
    assert ours.state[params[0]]["step"] == 10


@pytest.mark.parametrize("how", ["state", "load_state_dict"])
def test_exchanging_the_states_of_two_parameters(how):
    def exchange(optimizer, params):
        if how == "state":
            state = optimizer.state
            state[params[0]], state[params[1]] = state[params[1]], state[params[0]]
        else:
            loaded = optimizer.state_dict()
            states = loaded["state"]
            states[0], states[1] = states[1], states[0]
            optimizer.load_state_dict(loaded)

    params, stock_params = (make_params(sizes=((30, 8), (30, 8))) for _ in range(2))
    ours, theirs = AdamW(params), torch.optim.AdamW(stock_params, fused=True)
    both((ours, theirs, params, stock_params), exchange)


@pytest.mark.parametrize(
    "how",
    [
        lambda optimizer, params: optimizer.state.clear(),
        lambda optimizer, params: setattr(optimizer, "state", defaultdict(dict)),
        lambda optimizer, params: optimizer.state.pop(params[0]),
        lambda optimizer, params: optimizer.state[params[5]].clear(),
    ],
    ids=["clear", "replace", "pop", "clear one"],
)
def test_taking_states_away_begins_anew(how):
    both(pair(), how)


def test_giving_states_before_the_first_step():
    ours, theirs, params, stock_params = pair()
    for optimizer, own in ((ours, params), (theirs, stock_params)):
        for param in own:
            like = torch.full_like(param, 0.5, requires_grad=False)
            optimizer.state[param] = {
                "step": torch.tensor(4.0, device="cpu" if optimizer is ours else "sim"),
                "exp_avg": like.clone(),
                "exp_avg_sq": like.clone(),
                "max_exp_avg_sq": like.clone(),
            }
    train(ours, params, 2)
    train(theirs, stock_params, 2)
    assert_same(ours, theirs, params, stock_params)
    assert ours.state[params[0]]["exp_avg"].device.type == "cpu"


def test_entries_of_the_user_are_kept():
    ours, _, params, _ = pair()
    train(ours, params, 1)
    ours.state[params[0]]["note"] = torch.ones(3)
    ours.state["global"] = {"seen": 5}
    train(ours, params, 2, first=1)
    assert torch.equal(ours.state[params[0]]["note"], torch.ones(3))
    loaded = AdamW(make_params(), amsgrad=True)
    loaded.load_state_dict(ours.state_dict())
    assert loaded.state["global"] == {"seen": 5}
    assert torch.equal(loaded.state[loaded.param_groups[0]["params"][0]]["note"], torch.ones(3))


def test_what_does_not_fit_is_refused_with_nothing_changed():
    ours, theirs, params, stock_params = pair()
    train(ours, params, 2)
    train(theirs, stock_params, 2)
    good = ours.state[params[0]]["exp_avg"]
    ours.state[params[0]]["exp_avg"] = torch.zeros(3)
    set_grads(params, 2)
    with pytest.raises(ValueError, match=r"exp_avg of .*\(64, 48\).* has sizes \(3,\)"):
        ours.step()
    ours.state[params[0]]["exp_avg"] = good
    ours.step()
    train(theirs, stock_params, 1, first=2)
    assert_same(ours, theirs, params, stock_params)


def test_reading_and_loading_touch_no_device():
    ours, _, params, _ = pair()
    train(ours, params, 2)
    other = AdamW(make_params(), amsgrad=True)
    ours.drain()
    before = copies(), swapline.sim.counters()["num_ops"]
    state_dict = ours.state_dict()
    ours.load_state_dict(state_dict)
    other.load_state_dict(copy.deepcopy(state_dict))
    other.state_dict()
    assert (copies(), swapline.sim.counters()["num_ops"]) == before
    assert ours.device_state_bytes() == other.device_state_bytes() == 0


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_go_on_alike(how):
    ours, _, params, _ = pair()
    train(ours, params, 3)
    twin = how(ours)
    twin_params = twin.param_groups[0]["params"]
    assert twin_params[0] is not params[0]
    assert twin._swap_options == ours._swap_options
    train(ours, params, 3, first=3)
    train(twin, twin_params, 3, first=3)
    assert_same(twin, ours, twin_params, params)


def test_a_failed_construction_leaves_nothing():
    before = swapline.sim.pinned_memory()["allocated_bytes"]
    with pytest.raises(ValueError, match="lr"):
        Adam(make_params(), lr=-1.0)
    with pytest.raises(ValueError, match="more than one parameter group"):
        params = make_params()
        AdamW([{"params": params}, {"params": params[:1]}])
    assert swapline.sim.pinned_memory()["allocated_bytes"] == before
