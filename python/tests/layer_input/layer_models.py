"""Small models on the simulated device, and the comparison of a run with swap to one without."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import swapline.sim
from swapline import SwapContext
from swapline.layer_input import LayerInputs, SwapLayerInputs

DIM = 32
ROWS = 24
WAYS = ("recompute", "reentrant", "non-reentrant")


def make_context(**options) -> SwapContext:
    return SwapContext(
        torch.device("sim:0"), slab_bytes=1 << 20, like=swapline.sim.context_options(), **options
    )


class Layer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)
        self.dropout = dropout

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.up(F.layer_norm(hidden_states, (DIM,))))
        return hidden_states + F.dropout(self.down(x), self.dropout, self.training)


class Model(nn.Module):
    """Layers that `run` runs: a function of a layer and its input."""

    def __init__(self, num_layers: int = 5, *, layer: Callable[[], nn.Module] = Layer) -> None:
        super().__init__()
        self.embed = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(layer() for _ in range(num_layers))
        self.head = nn.Linear(DIM, 1)
        self.run: Callable = checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = self.run(layer, h)
        return self.head(h)


def make_model(seed: int = 0, num_layers: int = 5, **options) -> Model:
    torch.manual_seed(seed)
    return Model(num_layers, **options).to("sim")


def batches(num: int, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, DIM, generator=generator).to("sim") for _ in range(num)]


def torch_way(name: str) -> Callable:
    is_reentrant = name == "reentrant"
    return lambda layer, *args: checkpoint(layer, *args, use_reentrant=is_reentrant)


@contextlib.contextmanager
def swapping(way: str, model: Model, **options):
    """The model's layers recomputed that way, swapped; yields what has stats()."""
    context = options.pop("context", None) or make_context()
    if way == "recompute":
        options.setdefault("num_layers", len(model.layers))
        inputs = LayerInputs(context, **options)
        model.run = inputs.recompute
        yield inputs
    else:
        model.run = torch_way(way)
        with SwapLayerInputs(model, context=context, **options) as swapped:
            yield swapped


def train(model: nn.Module, data: list[torch.Tensor]) -> list[torch.Tensor]:
    """Losses of some steps, then all parameters, on the CPU."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x in data:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [each.cpu() for each in (*losses, *(p.detach() for p in model.parameters()))]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.cpu() for p in model.parameters() if p.grad is not None]


def assert_equal(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected)
    for i, (one, other) in enumerate(zip(got, expected)):
        assert torch.equal(one, other), f"tensor {i} differs"
