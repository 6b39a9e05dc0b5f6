"""The order of copies and waits in a warm step is docs/stream_order.md's, on every device."""

import contextlib

import pytest
import torch
from models import make_batch, make_model
from story import Story

from swapline import optim
from swapline.layer_input import LayerInputs

# Four layers, strict, where no copy is ever found done before somebody waits for it. The last
# one's input stays; the one before it is on its way out when it is wanted again, and stays too.
LAYERS = """
compute: works
d2h waits for compute
d2h: out 0
compute: works
d2h waits for compute
d2h: out 1
compute: works
d2h waits for compute
d2h: out 2
compute waits for out 0
compute: works
compute waits for out 1
compute: works
h2d waits for compute
h2d waits for out 1
h2d: in 1
compute: works
compute waits for out 2
compute waits for in 1
h2d waits for compute
h2d waits for out 0
h2d: in 0
compute: works
compute waits for in 0
compute: works
"""


def chunks(num_chunks: int, num_slots: int = 3) -> str:
    """A step whose chunks have two rows each. A chunk waits for its own copies of the step before,
    from the fourth on for the copies out of the slot that it enters, and nobody for anything else.
    """
    lines = ["compute: works"]

    def load(chunk):
        lines.append(
            "h2d waits for compute"
            if chunk < num_slots
            else f"h2d waits for out {2 * (chunk - num_slots) + 1}"
        )
        lines.append("h2d waits for what was before")
        lines.extend(f"h2d: in {row}" for row in (2 * chunk, 2 * chunk + 1))

    for chunk in range(num_slots):
        load(chunk)
    for chunk in range(num_chunks):
        lines.append(f"compute waits for in {2 * chunk + 1}")
        lines.append("compute: works")
        lines.append("d2h waits for compute")
        lines.extend(f"d2h: out {row}" for row in (2 * chunk, 2 * chunk + 1))
        if chunk + num_slots < num_chunks:
            load(chunk + num_slots)
    return "\n".join(["", *lines, ""])


@contextlib.contextmanager
def nothing_is_done_early(device):
    """Copies that take long: a query never finds one done, and no wait is left out for that."""
    if device.kind == "sim":
        import swapline.sim

        with swapline.sim.faults(copy_slowdown=1e4):
            yield
    else:
        device.use("late")
        yield


def told(device, step) -> str:
    for warm_up in (True, True, False):
        if not warm_up:
            device.synchronize()
            device.clear()
        step()
    return "\n".join(["", *Story().tell(device.log()), ""])


@pytest.mark.any_schedule
def test_layer_inputs(logged):
    with nothing_is_done_early(logged):
        model, x = make_model(logged, num_layers=4), make_batch(logged)
        inputs = LayerInputs(logged.context(), num_layers=4, keep_last=1, max_swapping_out=1)

        def step():
            h = model.embed(x)
            for layer in model.layers:
                h = inputs.recompute(layer, h)
            h.sum().backward()

        assert told(logged, step) == LAYERS


@pytest.mark.any_schedule
def test_optimizer_states(logged):
    with nothing_is_done_early(logged):
        param = torch.nn.Parameter(torch.ones(64, 1024, device=logged.at()))
        optimizer = optim.AdamW(
            [param],
            foreach=True,
            context=logged.context(),
            swap_optimizer_times=1,
            link_bytes_per_s=1e9,
            copy_latency_s=3e-5,
        )

        def step():
            param.grad = torch.ones_like(param)
            optimizer.step()

        story = told(logged, step)
        assert optimizer.stats()["num_chunks"] == 5
        assert story == chunks(5)
