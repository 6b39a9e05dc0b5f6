"""The test of the tests: each wait of docs/stream_order.md left out in turn is reported as a race,
on every device that has a race checker."""

import gc

import pytest
import swapline_drop_wait
import torch
from models import make_batch, make_model
from swapline_drop_wait import DropWait, swap_back_and_forth

from swapline import optim
from swapline.layer_input import LayerInputs


def train_layers(device, order):
    """Six layers, four steps, host buffers that come back while they are still read."""
    context = device.context(like=order.context_options(), slab_bytes=4096)
    model, x = make_model(device, num_layers=6), make_batch(device)
    inputs = LayerInputs(context, num_layers=6, max_swapping_out=1)
    for _ in range(4):
        h = model.embed(x)
        for layer in model.layers:
            h = inputs.recompute(layer, h)
        model.head(h).sum().backward()
    context.settle_all()


def make_optimizer(device, order, sizes):
    params = [torch.nn.Parameter(torch.ones(size, device=device.at())) for size in sizes]
    context = device.context(like=order.context_options())
    made = optim.AdamW(params, foreach=True, context=context, swap_optimizer_times=4)
    return params, made, context


def train_states(device, order):
    """Steps back to back, then something that reuses the slots' memory."""
    params, optimizer, context = make_optimizer(device, order, [(300, 300), (1000,), (64, 64)])
    slot = {"size": (optimizer.stats()["slot_bytes"],), "dtype": torch.uint8, "device": device.at()}
    for _ in range(3):  # memory that compute has just used: the slots come to lie in it
        torch.ones(**slot)
    for _ in range(3):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    context.settle_all()
    torch.ones(**slot)


def train_the_last_chunk(device, order):
    """The chunk that is stored last, alone in the next step, takes slots that are free already."""
    params, optimizer, _ = make_optimizer(device, order, [(256, 256), (256, 256), (64,)])
    for step in range(2):
        for param in params if step == 0 else params[:2]:
            param.grad = torch.ones_like(param) if step == 0 else None
        optimizer.step()


SCENARIOS = {
    "swap core": lambda device, order: swap_back_and_forth(device.at(), order),
    "layers": train_layers,
    "states": train_states,
    "last chunk": train_the_last_chunk,
}
# Where each is seen; a "swap core" too where layers of a model need it less often.
SEEN_IN = {
    "kSwapOutAfterProducer": ("swap core", "layers"),
    "kReleaseAfterSwapOut": ("swap core", "layers"),
    "kSwapInAfterAllocation": ("swap core", "layers"),
    "kSwapInAfterSwapOut": ("swap core",),
    "kUseAfterSwapIn": ("swap core", "layers"),
    "kCopyAfterHostReuse": ("swap core",),
    "kLoadAfterSlotFree": ("states",),
    "kUpdateAfterLoad": ("states",),
    "kStoreAfterUpdate": ("states",),
    "kLoadAfterStore": ("last chunk",),
    "kReleaseSlotAfterStore": ("states",),
}
# torch_npu keeps a block of the user's back by itself until its last use is done.
NOT_SEEN = {("npu", "kReleaseAfterSwapOut")}
CASES = [(name, scenario) for name, scenarios in SEEN_IN.items() for scenario in scenarios]

# Copies that the host has found done need no wait. Here none is done before somebody waits.
pytestmark = [
    pytest.mark.any_schedule,
    pytest.mark.filterwarnings("ignore:swap_optimizer_times .* leaves less device memory"),
]


def races_without(device, name, scenario) -> list[str]:
    device.use("late")
    order = DropWait(name)
    SCENARIOS[scenario](device, order)
    assert name is None or order.count(name) > 0
    gc.collect()
    device.synchronize()
    races = device.races()
    device.clear_races()
    return races


def test_each_wait_has_its_scenario():
    assert sorted(SEEN_IN) == sorted(swapline_drop_wait.NAMES)


@pytest.mark.parametrize("name, scenario", CASES)
def test_a_wait_left_out_is_reported(logged, name, scenario):
    if (logged.kind, name) in NOT_SEEN:
        pytest.skip("not seen: the allocator keeps the block until its last use is done")
    assert races_without(logged, name, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_all_waits_there_is_no_race(logged, scenario):
    assert races_without(logged, None, scenario) == []
