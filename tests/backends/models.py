"""Small layers, and every way of recomputing them with their inputs swapped."""

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from device import Device
from torch import nn
from torch.utils.checkpoint import checkpoint

from swapline.layer_input import LayerInputs, SwapLayerInputs

DIM = 32
ROWS = 24
WAYS = ("recompute", "reentrant", "non-reentrant", "checkpoint_wrapper")


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

    def __init__(self, layer: Callable[[], nn.Module] = Layer, num_layers: int = 5) -> None:
        super().__init__()
        self.embed = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(layer() for _ in range(num_layers))
        self.head = nn.Linear(DIM, 1)
        self.run: Callable = lambda layer, *args: layer(*args)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = self.run(layer, h)
        return self.head(h)


def make_model(device: Device, index: int = 0, **options) -> Model:
    torch.manual_seed(0)
    return Model(**options).to(device.at(index))


def make_batch(device: Device, index: int = 0, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, DIM, generator=generator).to(device.at(index))


@contextlib.contextmanager
def recomputing(way: str, model: Model, is_swapped: bool, device: Device, **options) -> Iterator:
    """The model's layers recomputed that way; yields what has stats(), None without swap."""
    if is_swapped and "context" not in options:
        options["context"] = device.context()
    if way == "recompute":
        context = options.pop("context", None)
        options.setdefault("num_layers", len(model.layers))
        inputs = LayerInputs(context, enabled=is_swapped, **options)
        model.run = inputs.recompute
        yield inputs if is_swapped else None
        return
    if way == "checkpoint_wrapper":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
    else:
        is_reentrant = way == "reentrant"
        model.run = lambda layer, *args: checkpoint(layer, *args, use_reentrant=is_reentrant)
    if not is_swapped:
        yield None
        return
    with SwapLayerInputs(model, **options) as swapped:
        yield swapped


def values_of(model: nn.Module) -> list[torch.Tensor]:
    """The parameters as they are now."""
    return [param.detach().clone() for param in model.parameters()]


def train_step(model: nn.Module, x: torch.Tensor, optimizer) -> list[torch.Tensor]:
    """One step; the loss and the parameters behind it."""
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [loss.detach(), *values_of(model)]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
