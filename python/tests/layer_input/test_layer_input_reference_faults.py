"""What is known to break in another implementation of the same feature, each as a test by its
number; those of a kind are in one. What is a test elsewhere in this folder: F3 to F5 views and
slices, F9 evaluation, F22 pickles, F23 positions and marks (wrappers)."""

import gc
import weakref

import pytest
import torch
from layer_models import (
    DIM,
    ROWS,
    WAYS,
    Layer,
    Model,
    assert_equal,
    batches,
    gradients,
    make_context,
    make_model,
    swapping,
    torch_way,
    train,
)
from torch import nn

import swapline.sim
from swapline.layer_input import SwapLayerInputs

FOREIGN = WAYS[1:]


def unswapped(way: str):
    return torch_way("reentrant" if way == "recompute" else way)


def step_ms(way: str, link_bytes_per_s: float, swaps: bool) -> float:
    """Of six layers of 2048 rows, strict."""
    link = {"h2d_bytes_per_s": link_bytes_per_s, "d2h_bytes_per_s": link_bytes_per_s}
    with swapline.sim.settings("tiny", dry_run=True, **link):
        model, x = make_model(num_layers=6), torch.randn(2048, DIM, device="sim")
        model.run = unswapped(way)
        with swapping(way, model, max_swapping_out=1, enabled=swaps):
            for num_steps in (2, 3):
                before = swapline.sim.time_ms()
                for _ in range(num_steps):
                    model(x).sum().backward()
        time_ms = (swapline.sim.time_ms() - before) / 3
        del model, x
        return time_ms


@pytest.mark.parametrize("way", WAYS)
def test_f1_a_layer_does_not_wait_for_its_own_copy(way):
    """Copies of two thirds of a layer's forward are hidden: nothing waits for a whole stream."""
    plain_ms = step_ms(way, 1e12, swaps=False)
    copy_s = plain_ms / 1e3 / (6 * 4) * 2 / 3
    assert step_ms(way, 2048 * DIM * 4 / copy_s, swaps=True) <= plain_ms * 1.01


@pytest.mark.parametrize("way", WAYS)
def test_f2_the_second_run_waits_for_its_input(way):
    """On a link so slow that a missing wait would be read."""
    with swapline.sim.settings("tiny", late_copies=True, faults={"copy_slowdown": 500.0}):
        expected = make_model()
        expected.run = unswapped(way)
        model = make_model()
        with swapping(way, model):
            assert_equal(train(model, batches(3)), train(expected, batches(3)))
        del expected, model


@pytest.mark.parametrize("way", FOREIGN)
def test_f6_one_storage_in_two_layers(way):
    """Both layers read halves of one tensor."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x):
            h = torch.cat([x, x * 2])
            run = torch_way(way)
            return run(self.layers[0], h[:ROWS]) + run(self.layers[1], h[ROWS:])

    torch.manual_seed(0)
    expected = Halves().to("sim")
    torch.manual_seed(0)
    model = Halves().to("sim")
    data = [x.requires_grad_() for x in batches(3)]
    with SwapLayerInputs(model, context=make_context(), keep_last=0):
        assert_equal(train(model, data), train(expected, data))


@pytest.mark.parametrize("way", WAYS)
def test_f7_f8_a_pass_that_is_stuck_stops_no_other(way):
    """One pass is kept for long, and others go by."""

    def run(model):
        kept = model(batches(1, seed=9)[0]).sum()
        for x in batches(3):
            model(x).sum().backward()
        kept.backward()
        return gradients(model)

    expected = make_model()
    expected.run = unswapped(way)
    model = make_model()
    with swapping(way, model) as swapped:
        assert_equal(run(model), run(expected))
        assert swapped.stats()["resident_inputs"] == 0


@pytest.mark.parametrize("recomputed", [(), (0, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("way", FOREIGN)
def test_f10_layers_that_are_not_recomputed_are_left_alone(way, recomputed):
    """No recompute, of some layers, of all but the last."""

    def build():
        model = make_model()
        run = torch_way(way)
        numbers = {id(layer): i for i, layer in enumerate(model.layers)}
        model.run = lambda layer, h: (run if numbers[id(layer)] in recomputed else _call)(layer, h)
        return model

    expected, model = build(), build()
    swapped = SwapLayerInputs(model, context=make_context(), keep_last=0)
    with swapped:
        assert_equal(train(model, batches(2)), train(expected, batches(2)))
    assert swapped.stats()["num_swapped_out"] == 2 * len(recomputed)


def _call(layer, h):
    return layer(h)


@pytest.mark.parametrize("way", WAYS)
def test_f11_a_model_leaves_nothing_to_the_next_one(way):
    """Two models of one class, the first gone before the second is trained."""
    context = make_context()
    first = make_model(0, num_layers=3)
    with swapping(way, first, context=context):
        train(first, batches(1))
        dropped = first(batches(1)[0])
    gone = weakref.ref(first)
    del first, dropped
    torch.sim.synchronize()
    gc.collect()
    assert gone() is None
    expected = make_model(1)
    expected.run = unswapped(way)
    second = make_model(1)
    with swapping(way, second, context=context) as swapped:
        assert_equal(train(second, batches(2)), train(expected, batches(2)))
        assert swapped.stats()["num_swapped_out"] == 2 * 4


@pytest.mark.parametrize("way", WAYS)
def test_f12_other_streams_and_devices(way):
    """The model runs on a stream of the user's, on the second device."""
    device = torch.device("sim:1")

    def run(model):
        stream = torch.Stream(device)
        stream.wait_stream(torch.accelerator.current_stream(device))
        with stream:
            for x in batches(3):
                model(x.to(device)).sum().backward()
        torch.accelerator.synchronize(device)
        return gradients(model)

    from swapline import SwapContext

    expected = make_model().to(device)
    expected.run = unswapped(way)
    model = make_model().to(device)
    torch.accelerator.synchronize()
    with torch.accelerator.device_index(1):
        context = SwapContext(device, slab_bytes=1 << 20)
        with swapping(way, model, context=context) as swapped:
            assert_equal(run(model), run(expected))
            assert swapped.stats()["num_swapped_out"] == 3 * 4


@pytest.mark.parametrize("way", WAYS)
def test_f13_f14_nothing_is_allocated_after_the_first_steps(way):
    """Neither device segments nor pinned memory, nor streams."""
    model = make_model()
    with swapping(way, model):
        for x in batches(4):
            model(x).sum().backward()
        memory, pinned = swapline.sim.memory(), swapline.sim.pinned_memory()
        streams = swapline.sim.counters()["num_streams"]
        for x in batches(6):
            model(x).sum().backward()
        now = swapline.sim.memory()
        assert now["num_segments_allocated"] == memory["num_segments_allocated"]
        assert swapline.sim.pinned_memory()["num_allocations"] == pinned["num_allocations"]
        assert swapline.sim.counters()["num_streams"] == streams


@pytest.mark.parametrize("way", WAYS)
def test_f15_a_slow_link_holds_no_more_on_the_device(way):
    with swapline.sim.settings("tiny", faults={"copy_slowdown": 500.0}):
        model = make_model(num_layers=8)
        with swapping(way, model, max_swapping_out=1) as swapped:
            for x in batches(3):
                model(x).sum().backward()
            assert swapped.stats()["peak_resident_inputs"] <= 1
        del model, x, swapped


@pytest.mark.parametrize("way", WAYS)
def test_f17_one_layer_and_none_that_is_last(way):
    for num_layers in (1, 2):
        expected = make_model(num_layers=num_layers)
        expected.run = unswapped(way)
        model = make_model(num_layers=num_layers)
        with swapping(way, model) as swapped:
            assert_equal(train(model, batches(2)), train(expected, batches(2)))
            assert swapped.stats()["num_swapped_out"] == 2 * (num_layers - 1)


@pytest.mark.parametrize("way", WAYS)
def test_f18_small_inputs_and_depth(way):
    model = make_model()
    with swapping(way, model, min_bytes=1 << 20) as swapped:
        train(model, batches(1))
        assert swapped.stats()["num_swapped_out"] == 0
        assert swapped.stats()["num_kept_on_device"] == 5
    deep = make_model(num_layers=6)
    with swapping(way, deep, prefetch=3, keep_last=0, max_swapping_out=1) as swapped:
        train(deep, batches(2))
        assert swapped.stats()["num_prefetch_misses"] == 0
        assert swapped.stats()["peak_resident_inputs"] <= 3


@pytest.mark.parametrize("way", FOREIGN)
def test_f19_f20_layers_that_return_tuples_and_mixed_stacks(way):
    """A tensor from one class of layer, a tuple from the other."""

    class Pair(Layer):
        def forward(self, hidden_states, other=None):
            return super().forward(hidden_states), None

    class Mixed(Model):
        def forward(self, x):
            h = self.embed(x)
            for layer in self.layers:
                out = self.run(layer, h)
                h = out[0] if isinstance(out, tuple) else out
            return self.head(h)

    def build():
        torch.manual_seed(0)
        made = iter([Layer(), Pair(), Layer(), Pair(), Pair()])
        model = Mixed(5, layer=lambda: next(made)).to("sim")
        model.run = torch_way(way)
        return model

    expected, model = build(), build()
    with SwapLayerInputs(model, context=make_context()) as swapped:
        assert_equal(train(model, batches(3)), train(expected, batches(3)))
        assert swapped.stats()["num_swapped_out"] == 3 * 4


@pytest.mark.parametrize("way", WAYS)
def test_f25_what_is_held_elsewhere_is_told(way):
    """The user keeps every layer's input, and reads it at any time."""
    held = []
    model = make_model()
    for layer in model.layers:
        layer.register_forward_pre_hook(
            lambda module, args: held.append(args[0]) if len(held) < 5 else None
        )
    with swapping(way, model, keep_last=0) as swapped:
        loss = model(batches(1)[0]).sum()
        values = [each.detach().cpu() for each in held]
        loss.backward()
        assert all(torch.isfinite(value).all() for value in values)
        assert_equal([each.detach().cpu() for each in held], values)
        assert swapped.stats()["bytes_not_freed"] > 0
    held.clear()  # they hold the graph, that the layers, and those this list
