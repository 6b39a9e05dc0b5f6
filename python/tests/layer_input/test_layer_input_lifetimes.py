"""Errors, threads and lifetimes: nothing is left behind, hidden, or waited for for ever."""

import functools
import gc
import queue
import threading
import warnings
import weakref

import pytest
import torch
from layer_models import (
    DIM,
    WAYS,
    Layer,
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
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import swapline.sim
from swapline.layer_input import LayerInputs, SwapLayerInputs, find_layers


class Failing(nn.Module):
    """A layer that raises in its first or second run."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()
        self.fails_in: str | None = None
        self.error: BaseException = ValueError("the layer's own")

    def forward(self, hidden_states):
        in_backward = torch._C._current_graph_task_id() != -1
        if self.fails_in == ("backward" if in_backward else "forward"):
            raise self.error
        return self.inner(hidden_states)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("error", [ValueError("the layer's own"), KeyboardInterrupt()])
def test_what_a_layer_raises_comes_out_and_the_next_step_is_right(way, where, error):
    expected = make_model(layer=Failing)
    expected.run = torch_way("reentrant" if way == "recompute" else way)
    model = make_model(layer=Failing)
    failing = model.layers[2]
    with swapping(way, model) as swapped:
        failing.fails_in, failing.error = where, error
        with pytest.raises(type(error)) as raised:
            model(batches(1)[0]).sum().backward()
        assert raised.value is error
        failing.fails_in = None
        del raised
        error.__traceback__ = None
        torch.sim.synchronize()  # autograd's thread lets go of the failed backward
        gc.collect()
        if not isinstance(error, KeyboardInterrupt):  # of which no hook is told
            assert swapped.stats()["resident_inputs"] == 0
        model.zero_grad()
        assert_equal(train(model, batches(3)), train(expected, batches(3)))
        assert swapped.stats()["resident_inputs"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_of_model_and_graph(way):
    class Payload:
        pass

    context = make_context()
    model = make_model()
    model.layers[0].payload = Payload()
    payload, layer = weakref.ref(model.layers[0].payload), weakref.ref(model.layers[0])
    with swapping(way, model, context=context) as swapped:
        train(model, batches(2))
        dropped = model(batches(1)[0])  # and no backward
        engine = weakref.ref(swapped)
        del dropped, swapped
    del model
    torch.sim.synchronize()
    gc.collect()
    assert payload() is None and layer() is None and engine() is None
    context.settle_all()
    assert context.host_stats()["requested_bytes"] == 0


def test_a_function_is_let_go_of_after_its_backward():
    inputs = LayerInputs(make_context())
    layer = Layer().to("sim")

    def function(h):
        return layer(h)

    alive = weakref.ref(function)
    x = batches(1)[0].requires_grad_()
    loss = inputs.recompute(function, x * 1).sum()
    loss.backward()
    del function
    assert alive() is None
    function = functools.partial(layer)
    alive = weakref.ref(function)
    loss = inputs.recompute(function, x * 1).sum()
    del function, loss
    assert alive() is None


@pytest.mark.parametrize("way", WAYS)
def test_an_input_written_in_place_is_an_error(way):
    model = make_model(num_layers=2)
    with swapping(way, model):
        h = model.embed(batches(1)[0])
        out = model.run(model.layers[0], h)
        with torch.no_grad():
            h.add_(1)
        swapline.sim.clear_races()  # the copy out may be under way
        with pytest.raises(RuntimeError, match="in-?place operation"):
            out.sum().backward()


def test_other_saved_tensors_keep_autograds_check():
    model = make_model(num_layers=2)
    with swapping("non-reentrant", model):
        x = batches(1)[0].requires_grad_()
        y = x * 2
        z = y * y
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_wrong_arguments_are_named():
    context = make_context()
    with pytest.raises(TypeError, match="no option 'prefech'.*prefetch_bytes"):
        LayerInputs(context, prefech=2)
    with pytest.raises(ValueError, match="prefetch is -1; it must be 0 or more"):
        LayerInputs(context, prefetch=-1)
    with pytest.raises(TypeError, match="keep_last is 'all'; it must be .* or \"auto\""):
        LayerInputs(context, keep_last="all")
    with pytest.raises(TypeError, match="enabled is 1; it must be a bool"):
        LayerInputs(context, enabled=1)
    with pytest.raises(RuntimeError, match="cpu"):
        LayerInputs("cpu")
    with pytest.raises(TypeError, match="hidden_states.*is a list; it must be a tensor"):
        LayerInputs(context).recompute(torch.sum, [1])
    with pytest.raises(ValueError, match="no layers found in Linear; give layers="):
        SwapLayerInputs(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="a device or a context"):
        SwapLayerInputs(make_model(), device="sim:0", context=context)
    swapped = SwapLayerInputs(make_model(), context=context)
    with swapped, pytest.raises(RuntimeError, match="entered already"):
        swapped.__enter__()


def test_double_backward_and_partial_backward_are_refused():
    inputs = LayerInputs(make_context())
    layer = Layer().to("sim")
    x = batches(1)[0].requires_grad_()
    with pytest.raises(RuntimeError, match="double backward"):
        inputs.recompute(layer, x * 1).sum().backward(create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch.autograd.grad\(\).* not supported"):
        torch.autograd.grad(inputs.recompute(layer, x * 1).sum(), x)


def test_a_dataclass_with_tensors_is_refused():
    import dataclasses

    @dataclasses.dataclass
    class Output:
        tensor: torch.Tensor

    inputs = LayerInputs(make_context())
    x = batches(1)[0].requires_grad_()
    with pytest.raises(TypeError, match="returned a Output, whose tensors would have no gradient"):
        inputs.recompute(lambda h: Output(h * 2), x * 1)
    assert inputs.stats()["resident_inputs"] == 0


def test_compiled_layers_are_refused():
    model = make_model(num_layers=3)
    model.layers[1]._compiled_call_impl = model.layers[1]._call_impl  # what compile() sets
    with pytest.raises(ValueError, match="layer Layer is compiled.*what is inside the layer"):
        SwapLayerInputs(model)


def test_idle_swap_says_so():
    model = make_model()
    model.run = lambda layer, h: layer(h)
    idle = pytest.warns(UserWarning, match="none of their inputs was saved by a recompute function")
    with idle, SwapLayerInputs(model) as swapped:
        model(batches(1)[0]).sum().backward()
    assert not any(swapped.stats().values())


def test_which_modules_are_layers():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(9))

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(checkpoint_wrapper(Experts()) for i in range(3))
            self.heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(2, 2)
            self.blocks = nn.ModuleDict({str(i): Layer() for i in range(3)})

    assert [type(layer) for layer in find_layers([Named()])] == [Layer] * 3
    assert len(find_layers([make_model(num_layers=1), make_model(num_layers=2)])) == 3
    model = Mixed()
    found = find_layers([model])
    assert [type(layer) for layer in found] == [Experts] * 3
    assert find_layers([model], layers=Experts) == found
    assert find_layers([model], layers=lambda m: isinstance(m, Experts)) == found
    assert find_layers([model], layers=list(model.blocks)) == found


def test_a_custom_check_keeps_inputs():
    seen = []

    def check(tensor):
        seen.append(tuple(tensor.shape))
        return False

    for way in WAYS:
        model = make_model(num_layers=3)
        with swapping(way, model, custom_check=check) as swapped:
            train(model, batches(1))
            assert swapped.stats()["num_refused"] == 3
            assert swapped.stats()["num_swapped_out"] == 0
    assert seen == [(24, DIM)] * 9


def test_an_error_in_a_custom_check_comes_out():
    def check(tensor):
        raise LookupError("the check's own")

    model = make_model(num_layers=3)
    own = pytest.raises(LookupError, match="the check's own")
    with swapping("recompute", model, custom_check=check), own:
        model(batches(1)[0])


@pytest.mark.parametrize("way", WAYS)
def test_no_host_memory_keeps_inputs_on_the_device(way):
    expected = make_model()
    expected.run = torch_way("reentrant" if way == "recompute" else way)
    model = make_model()
    context = make_context(max_host_bytes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with swapping(way, model, context=context) as swapped:
            assert_equal(train(model, batches(3)), train(expected, batches(3)))
            assert swapped.stats()["num_host_failures"] > 0
            assert swapped.stats()["num_swapped_out"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_each_copy_may_fail_once(way):
    expected = make_model()
    expected.run = torch_way("reentrant" if way == "recompute" else way)
    expected(batches(1)[0]).sum().backward()
    for failing_copy in range(0, 8, 2):
        model = make_model()
        x = batches(1)[0]
        with swapping(way, model, keep_last=0, max_swapping_out=1) as swapped:
            with swapline.sim.faults(fail_copy=failing_copy):
                try:
                    model(x).sum().backward()
                except RuntimeError:
                    model.zero_grad()
                    gc.collect()
                    model(x).sum().backward()
            assert_equal(gradients(model), gradients(expected))
            assert swapped.stats()["resident_inputs"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_other_threads_and_garbage_collection_do_not_deadlock(way):
    """A loader that pins, and threads that make and drop graphs, beside steps with a check in
    Python."""
    model = make_model(num_layers=4)
    stop = threading.Event()
    ready: queue.Queue = queue.Queue(maxsize=2)

    def load():
        while not stop.is_set():
            try:
                ready.put(torch.randn(24, DIM).pin_memory(), timeout=0.05)
            except queue.Full:
                pass

    def collect():
        while not stop.wait(0.01):
            ring = [Layer()]
            ring.append(ring)
            gc.collect()

    threads = [threading.Thread(target=each, daemon=True) for each in (load, collect)]
    for thread in threads:
        thread.start()
    try:
        with swapping(way, model, custom_check=lambda tensor: True) as swapped:
            for _ in range(3):
                dropped = model(ready.get(timeout=30).to("sim", non_blocking=True))
                model(ready.get(timeout=30).to("sim", non_blocking=True)).sum().backward()
                del dropped
            torch.sim.synchronize()
            assert swapped.stats()["num_swapped_in"] + swapped.stats()["num_recalls"] > 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("way", WAYS)
def test_backward_on_another_thread(way):
    expected = make_model()
    expected.run = torch_way("reentrant" if way == "recompute" else way)
    expected(batches(1)[0]).sum().backward()
    model = make_model()
    with swapping(way, model):
        loss = model(batches(1)[0]).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join(timeout=60)
    assert_equal(gradients(model), gradients(expected))
