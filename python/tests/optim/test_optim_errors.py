"""What is refused, what fails in the middle, and what interrupts a step."""

import signal

import pytest
import torch
from optim_support import DEVICE, assert_same, make_params, set_grads, train

import swapline
import swapline.sim
from swapline.optim import Adam, AdamW, Muon


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"swap_optimizer_times": 0}, ValueError, "swap_optimizer_times must be at least 1, got 0"),
        ({"swap_optimizer_times": -3}, ValueError, "at least 1, got -3"),
        ({"swap_optimizer_times": 2.5}, TypeError, "an integer of at least 1, got 2.5"),
        ({"swap_optimizer_times": True}, TypeError, "got True"),
        ({"swap_optimizer_fraction": 1.5}, ValueError, r"in \[0, 1\], got 1.5"),
        ({"swap_optimizer_fraction": float("nan")}, ValueError, "got nan"),
        ({"swap_optimizer_arena_bytes": -1}, ValueError, "at least 0"),
        ({"swap_optimizer_min_bytes": "1"}, TypeError, "got '1'"),
        ({"num_slots": 2}, ValueError, "num_slots must be at least 3"),
        ({"link_bytes_per_s": 0}, ValueError, "above 0"),
        ({"copy_latency_s": -1e-6}, ValueError, "at least 0"),
        ({"placement": "host"}, ValueError, '"swap" or "device", got \'host\''),
        ({"state_dtype": torch.int8}, ValueError, "got torch.int8"),
        ({"master_weights": 1}, TypeError, "master_weights must be a bool"),
        ({"virtual_optimizer_size": "some"}, ValueError, 'GiB as a number, "all" or None'),
        ({"virtual_optimizer_size": -1.0}, ValueError, "got -1.0"),
        ({"swap_optimizer_time": 4}, TypeError, "swap_optimizer_time"),
        ({"context": "sim"}, TypeError, "context must be a SwapContext, a list"),
    ],
)
@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_wrong_options(kind, options, error, message):
    params = make_params(sizes=((8, 8),), transposed=False)
    with pytest.raises(error, match=message):
        kind(params, **options)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"lr": -1.0}, ValueError, "lr must be at least 0, got -1"),
        ({"lr": torch.ones(2)}, ValueError, "1-element"),
        ({"betas": (1.0, 0.9)}, ValueError, r"beta1 must be in \[0, 1\), got 1"),
        ({"eps": -1.0}, ValueError, "eps"),
        ({"weight_decay": float("nan")}, ValueError, "weight_decay"),
        ({"capturable": True}, ValueError, "capturable of group 0 is True"),
        ({"differentiable": True}, ValueError, "differentiable of group 0 is True"),
        ({"fused": True, "foreach": True}, RuntimeError, "cannot be `True` together"),
    ],
)
@pytest.mark.parametrize("kind", [AdamW, Adam])
def test_wrong_hyperparameters(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind(make_params(), **options)


def test_betas_that_the_host_would_wait_for():
    with pytest.raises(ValueError, match="beta1 of group 0 is a tensor on sim:0"):
        AdamW(make_params(), betas=(torch.tensor(0.9, device=DEVICE), 0.99))


def test_wrong_parameters():
    with pytest.raises(ValueError, match="parameter 0 of group 0 is on cpu: move the model"):
        AdamW([torch.zeros(3, requires_grad=True)])
    with pytest.raises(ValueError, match="on meta: give it memory"):
        AdamW([torch.zeros(3, requires_grad=True, device="meta")])
    leaf = torch.zeros(3, requires_grad=True, device=DEVICE)
    with pytest.raises(ValueError, match="non-leaf"):
        AdamW([leaf * 2])
    with pytest.raises(RuntimeError, match="real floating-point type, got Complex"):
        AdamW([torch.zeros(3, dtype=torch.complex64, device=DEVICE, requires_grad=True)])
    with pytest.raises(RuntimeError, match="has gaps or overlaps"):
        AdamW([torch.zeros(4, 6, device=DEVICE)[:, :3].requires_grad_()])
    with pytest.raises(ValueError, match="empty parameter list"):
        AdamW([])
    with pytest.raises(ValueError, match="parameters are on sim:0 and context is of sim:1"):
        AdamW([leaf], context=swapline.SwapContext(torch.device("sim:1")))


class Wrapped(torch.Tensor):
    """A tensor around another one."""

    @staticmethod
    def __new__(cls, inner):
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=True
        )
        wrapper.inner = inner
        return wrapper

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def test_a_tensor_subclass_is_refused():
    with pytest.raises(TypeError, match="parameter 0 of group 0 is a .*Wrapped, a tensor subclass"):
        AdamW([Wrapped(torch.zeros(3, device=DEVICE))])


def test_settings_that_become_wrong_can_be_put_right():
    params, stock_params = make_params(), make_params()
    ours, theirs = AdamW(params), torch.optim.AdamW(stock_params, fused=True)
    train(ours, params, 1)
    set_grads(params, 1)
    for key, wrong, right in (("lr", -1.0, 1e-3), ("betas", (0.9, 1.0), (0.9, 0.999))):
        ours.param_groups[0][key] = wrong
        with pytest.raises(ValueError, match="must be"):
            ours.step()
        ours.param_groups[0][key] = right
    ours.step()
    train(theirs, stock_params, 2)
    assert_same(ours, theirs, params, stock_params)


def test_a_moved_parameter_is_refused():
    params = make_params()
    ours = AdamW(params)
    train(ours, params, 1)
    params[0].data = params[0].data.bfloat16()
    set_grads(params, 1)
    with pytest.raises(RuntimeError, match="make a new optimizer after a parameter is moved"):
        ours.step()


def test_no_memory_before_the_first_update_can_be_repeated():
    params, stock_params = make_params(), make_params()
    ours, theirs = AdamW(params), torch.optim.AdamW(stock_params, fused=True)
    train(ours, params, 2)
    ours.drain()
    set_grads(params, 2)
    torch.sim.empty_cache()
    free = swapline.sim.memory()
    swapline.sim.take_away(free["capacity_bytes"] - free["reserved_bytes"])
    filler = []
    try:
        while True:  # what is left in the allocator's own blocks
            filler.append(torch.empty(512, dtype=torch.uint8, device=DEVICE))
    except torch.OutOfMemoryError:
        pass
    with pytest.raises(torch.OutOfMemoryError):
        ours.step()
    filler.clear()
    swapline.sim.take_away(0)
    ours.step()
    train(theirs, stock_params, 3)
    assert_same(ours, theirs, params, stock_params)


def test_a_failure_after_an_update_is_for_good_and_says_what_was_done():
    params = make_params()
    ours = AdamW(params, copy_latency_s=1e-9)
    train(ours, params, 1)
    ours.drain()
    set_grads(params, 1)
    num_failed = 0
    for k in range(200):
        launches = ours.stats()["num_launches"]
        try:
            with swapline.sim.faults(fail_launch=k):
                ours.step()
            break
        except RuntimeError as error:
            num_failed += 1
            if ours.stats()["num_launches"] > launches or "had been updated" in str(error):
                message = str(error)
                break
    assert num_failed > 0 and "parameters had been updated" in message
    assert "Make a new optimizer from a checkpoint" in message
    assert ours.device_state_bytes() == 0
    with pytest.raises(RuntimeError, match="had been updated"):
        ours.step()
    with pytest.raises(RuntimeError, match="had been updated"):
        ours.prefetch()


def test_ctrl_c_in_a_step_leaves_nothing_in_flight():
    """The interrupt is handled when the step is enqueued: it counts, and all copies are done."""
    params, stock_params = make_params(), make_params()
    ours, theirs = AdamW(params), torch.optim.AdamW(stock_params, fused=True)
    train(ours, params, 1)
    set_grads(params, 1)
    interrupting = ours.register_step_pre_hook(lambda *_: set_alarm())

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    def set_alarm():
        # Python looks at signals between its own steps: this one comes within the C++ call.
        signal.setitimer(signal.ITIMER_REAL, 1e-6)

    former = signal.signal(signal.SIGALRM, interrupt)
    num_interrupted = 0
    try:
        for _ in range(50):
            try:
                ours.step()
            except KeyboardInterrupt:
                num_interrupted += 1
                before = swapline.sim.counters()["num_copies_out"]
                assert ours.device_state_bytes() == 0
                ours.drain()
                assert swapline.sim.counters()["num_copies_out"] == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        interrupting.remove()
    assert num_interrupted > 0
    # Each step was done as a whole or not at all.
    num_steps = int(ours.state[params[0]]["step"])
    assert {int(ours.state[param]["step"]) for param in params} == {num_steps}
    set_grads(stock_params, 0)
    theirs.step()
    set_grads(stock_params, 1)
    for _ in range(num_steps - 1):
        theirs.step()
    assert_same(ours, theirs, params, stock_params)


def test_states_beyond_this_machines_memory_are_refused_before_anything_is_changed():
    """What is free is read from the system, whoever else on it uses the rest."""
    swapline.sim.configure("tiny", dry_run=True, capacity=1 << 38)
    params = make_params(sizes=((64, 64),), transposed=False)
    ours = AdamW(params)
    train(ours, params, 1)
    pinned = swapline.sim.pinned_memory()["allocated_bytes"]
    too_large = torch.empty(1 << 35, device=DEVICE, requires_grad=True)  # 256 GiB of states
    free = r"host memory: cannot pin 256.0 GiB, only .* are free under"
    with pytest.raises(swapline.HostMemoryError, match=free):
        ours.add_param_group({"params": [too_large]})
    with pytest.raises(swapline.HostMemoryError, match=free):
        AdamW([too_large])
    assert len(ours.param_groups) == 1
    assert swapline.sim.pinned_memory()["allocated_bytes"] == pinned
    train(ours, params, 1, first=1)
    assert ours.state[params[0]]["step"] == 2


def test_nothing_is_left_when_an_optimizer_goes():
    params = make_params()
    before = swapline.sim.pinned_memory()["allocated_bytes"]
    device_before = swapline.sim.memory()["allocated_bytes"]
    for _ in range(3):
        ours = AdamW(params)
        train(ours, params, 2)
        state = ours.state[params[0]]["exp_avg"]
        del ours  # by its last reference: no collector is needed
        assert state.sum().isfinite()  # keeps its own memory
        del state
        assert swapline.sim.pinned_memory()["allocated_bytes"] == before
        assert swapline.sim.memory()["allocated_bytes"] == device_before
