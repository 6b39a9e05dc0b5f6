"""The RFC's decorators, and schedules that save layer inputs piece by piece."""

import pytest
import torch
import torch.nn.functional as F
from models import (
    DIM,
    ROWS,
    Layer,
    make_batch,
    make_model,
    recomputing,
    sgd,
    train_step,
    values_of,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from swapline.layer_input import (
    LayerInputs,
    SwapGroupOfLayers,
    swap_layer_input_fboverlap_1f1b_wrapper,
    swap_layer_input_fboverlap_backward_wrapper,
    swap_layer_input_fboverlap_forward_wrapper,
    swap_layer_input_forward_wrapper,
    swap_layer_input_init_wrapper,
)


def make_layers(device, is_swapped, **options) -> nn.ModuleList:
    """As a framework has them, decorated: __init__, then forward."""

    class TransformerLayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(DIM, 2 * DIM)
            self.down = nn.Linear(2 * DIM, DIM)

        def forward(self, hidden_states, attention_mask=None):
            x = F.gelu(self.up(F.layer_norm(hidden_states, (DIM,))))
            return hidden_states + self.down(x), None

    if is_swapped:
        group = SwapGroupOfLayers(context=device.context(), **options)
        init, forward = TransformerLayer.__init__, TransformerLayer.forward
        TransformerLayer.__init__ = swap_layer_input_init_wrapper(init, group=group)
        TransformerLayer.forward = swap_layer_input_forward_wrapper(forward)
    torch.manual_seed(0)
    return nn.ModuleList(TransformerLayer() for _ in range(5)).to(device.at())


class Stack(nn.Module):
    """Recomputed as frameworks do that save layer inputs by themselves."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x):
        h = (x * 1).requires_grad_() * 1  # a leaf would stay on the device
        for layer in self.layers:
            h, _ = checkpoint(layer, h, use_reentrant=True)
        return h


@pytest.mark.parametrize("prefetch", [1, 2])
def test_decorators(device, same_with_swap, prefetch):
    def run(is_swapped):
        layers = make_layers(device, is_swapped, prefetch=prefetch)
        model, x = Stack(layers), make_batch(device)
        while True:
            yield train_step(model, x, sgd(model))

    same_with_swap(run)


class LayerGraph:
    """What a framework's forward-backward overlap keeps of a layer."""

    def __init__(self, layer, layer_input) -> None:
        self.layer = layer
        self.layer_input = layer_input


def plain_forward(layer, hidden_states):
    x = F.gelu(layer.up(F.layer_norm(hidden_states, (DIM,))))
    return hidden_states + layer.down(x)


def run_forward(self, hidden_states, attention_mask=None, checkpoint=False):
    with torch.no_grad():
        return plain_forward(self, hidden_states), LayerGraph(self, hidden_states)


def run_backward(layer_output_grad, layer_graph):
    h = layer_graph.layer_input.detach().requires_grad_()
    plain_forward(layer_graph.layer, h).backward(layer_output_grad)
    return h.grad


def run_both(self, hidden_states, attention_mask, grad, bwd_layer_graph=None, checkpoint=False):
    out = run_forward(self, hidden_states)
    back = run_backward(grad, bwd_layer_graph) if bwd_layer_graph is not None else None
    return (*out, back)


def test_forward_backward_overlap(device, same_with_swap):
    """Three micro-batches: each one's forward runs together with the former one's backward."""

    def run(is_swapped):
        first, pair, last = run_forward, run_both, run_backward
        if is_swapped:
            first = swap_layer_input_fboverlap_forward_wrapper(run_forward)
            pair = swap_layer_input_fboverlap_1f1b_wrapper(run_both)
            last = swap_layer_input_fboverlap_backward_wrapper(run_backward)
        layers = make_layers(device, is_swapped, keep_last=0)
        data = [make_batch(device, seed=seed) for seed in range(3)]
        while True:
            graphs: list[LayerGraph] = []
            grad = torch.ones(ROWS, DIM, device=device.at())
            for x in data:
                h, made = x * 1, []
                for layer in layers:
                    if graphs:
                        h, graph, grad = pair(layer, h, None, grad, graphs.pop(), checkpoint=True)
                    else:
                        h, graph = first(layer, h, None, True)
                    made.append(graph)
                graphs, grad = made, torch.ones(ROWS, DIM, device=device.at())
            while graphs:
                grad = last(grad, graphs.pop())
            yield [p.grad.clone() for p in layers.parameters()]
            layers.zero_grad()

    same_with_swap(run)


def test_inputs_saved_piece_by_piece(device, same_with_swap):
    """LayerInputs.save: forward, recompute and backward each at its own time."""

    def run(is_swapped):
        model, x = make_model(device, num_layers=4), make_batch(device)
        context = device.context() if is_swapped else None
        inputs = LayerInputs(context, enabled=is_swapped, num_layers=4, keep_last=0)
        optimizer = sgd(model)
        while True:
            h, saved = x * 1, []
            with torch.no_grad():
                for layer in model.layers:
                    one = inputs.save(h, saved[-1] if saved else None) if is_swapped else h
                    h = layer(h)
                    if is_swapped:
                        one.layer_done()
                    saved.append(one)
            grad = torch.ones_like(h)
            for layer, one in zip(reversed(model.layers), reversed(saved)):
                again = (one.take() if is_swapped else one).detach().requires_grad_()
                out = layer(again)
                if is_swapped:
                    one.recomputed([out])
                out.backward(grad)
                grad, again = again.grad, None
                if is_swapped:
                    one.finish()
            optimizer.step()
            optimizer.zero_grad()
            saved.clear()
            yield [grad.clone(), *values_of(model)]

    same_with_swap(run)


def test_a_layer_that_returns_its_input(device, same_with_swap):
    class Through(Layer):
        def forward(self, hidden_states):
            return hidden_states

    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        model.layers[2] = Through().to(device.at())
        with recomputing("recompute", model, is_swapped, device):
            while True:
                yield train_step(model, x, torch.optim.SGD(model.parameters(), lr=0.01))

    same_with_swap(run)
