"""Layer inputs swapped, by every way of recomputing: the bits of the plain run, nobody waits."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from models import DIM, WAYS, Layer, make_batch, make_model, recomputing, sgd, train_step
from torch import nn

pytestmark = pytest.mark.parametrize("way", WAYS)


def training(device, way, *, layer=Layer, **options):
    """A run of plain training steps."""

    def run(is_swapped):
        model, x = make_model(device, layer=layer), make_batch(device)
        with recomputing(way, model, is_swapped, device, **options):
            while True:
                yield train_step(model, x, sgd(model))

    return run


@pytest.mark.parametrize("bound", [1, "auto"])
def test_training(device, same_with_swap, way, bound):
    same_with_swap(training(device, way, max_swapping_out=bound))


def test_with_times_taken(device, same_with_swap, way):
    def run(is_swapped):
        context = device.context(timing=True) if is_swapped else None
        yield from training(device, way, context=context)(is_swapped)

    same_with_swap(run)


def test_dropout(device, same_with_swap, way):
    same_with_swap(training(device, way, layer=lambda: Layer(dropout=0.3)))


def test_autocast(device, same_with_swap, way):
    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        with recomputing(way, model, is_swapped, device):
            while True:
                with torch.autocast(device.kind, dtype=torch.bfloat16):
                    loss = model(x).float().square().mean()
                loss.backward()
                yield [loss.detach(), *(p.grad.clone() for p in model.parameters())]
                model.zero_grad()

    same_with_swap(run)


class SliceOf(nn.Module):
    """Runs its layer on a view of what it is given."""

    def __init__(self, view) -> None:
        super().__init__()
        self.layer = Layer()
        self.view = view

    def forward(self, hidden_states):
        return self.layer(self.view(hidden_states))


@pytest.mark.parametrize("kind", ["slice", "transposed", "step", "expanded"])
def test_views_as_inputs(device, same_with_swap, way, kind):
    views = {
        "slice": lambda h: torch.cat([h, h], 1)[:, DIM // 2 : DIM // 2 + DIM],
        "transposed": lambda h: h.t().contiguous().t(),
        "step": lambda h: torch.cat([h, h], 1)[:, ::2],
        "expanded": lambda h: h.mean(0, keepdim=True).expand(24, DIM),
    }

    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        with recomputing(way, model, is_swapped, device):
            inner = model.run
            model.run = lambda layer, h: inner(layer, views[kind](h))
            while True:
                yield train_step(model, x, sgd(model))

    same_with_swap(run)


def test_evaluation_between(device, same_with_swap, way):
    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        with recomputing(way, model, is_swapped, device) as swapped:
            while True:
                step = train_step(model, x, sgd(model))
                before = swapped.stats()["num_swapped_out"] if is_swapped else 0
                with torch.no_grad():
                    step.append(model.eval()(x))
                with torch.inference_mode():
                    model(x)
                model.train()
                assert not is_swapped or swapped.stats()["num_swapped_out"] == before > 0
                yield step

    same_with_swap(run)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_backwards_in_any_order(device, same_with_swap, way, order):
    def run(is_swapped):
        model = make_model(device)
        data = [make_batch(device, seed=seed) for seed in range(3)]
        with recomputing(way, model, is_swapped, device):
            while True:
                losses = [model(x).sum() for x in data]
                for i in order:
                    losses[i].backward()
                yield [p.grad.clone() for p in model.parameters()]
                model.zero_grad()

    same_with_swap(run)


class Fails(Layer):
    """Raises in call number `at`, once; counts forwards and recomputes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.at, self.error = 0, -1, ValueError

    def forward(self, hidden_states):
        self.calls += 1
        if self.calls - 1 == self.at:
            if self.error is torch.OutOfMemoryError:
                hidden_states.new_empty(1 << 45)
            raise self.error("as the user wrote it")
        return super().forward(hidden_states)


@pytest.mark.parametrize("error", [ValueError, torch.OutOfMemoryError], ids=["user's", "memory"])
@pytest.mark.parametrize("at", [0, 1], ids=["forward", "recompute"])
def test_a_step_that_fails_is_run_again(device, same_with_swap, way, at, error):
    def run(is_swapped):
        model, x = make_model(device, layer=Fails), make_batch(device)
        failing = model.layers[2]
        with recomputing(way, model, is_swapped, device):
            while True:
                # Not in step 3, where waits are counted: an allocator out of memory may wait.
                if failing.calls in (0, 2):
                    failing.at, failing.error = failing.calls + at, error
                    with pytest.raises(error):
                        model(x).square().mean().backward()
                    model.zero_grad()
                    failing.at, failing.calls = -1, 4 if failing.calls > 2 else 2
                yield train_step(model, x, sgd(model))

    same_with_swap(run)


@pytest.mark.parametrize("what", ["copy", "pinned-allocation"])
def test_a_runtime_call_that_fails(logged, same_with_swap, way, what):
    """An input whose memory or copy is refused: the step raises, or the input stays; the next step
    is right."""
    if logged.kind == "npu" and what == "copy":
        pytest.skip("torch_npu's task queue ends with the first call that fails")

    def run(is_swapped):
        model, x = make_model(logged), make_batch(logged)
        with recomputing(way, model, is_swapped, logged):
            if is_swapped:
                with logged.failing(what), contextlib.suppress(RuntimeError):
                    model(x).square().mean().backward()
                model.zero_grad()
            while True:
                yield train_step(model, x, sgd(model))

    same_with_swap(run)


def test_accumulated_gradients_and_a_retained_graph(device, same_with_swap, way):
    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        with recomputing(way, model, is_swapped, device):
            while True:
                loss = model(x).sum()
                loss.backward(retain_graph=True)
                loss.backward()
                F.mse_loss(model(x), x[:, :1]).backward()
                yield [p.grad.clone() for p in model.parameters()]
                model.zero_grad()

    same_with_swap(run)
