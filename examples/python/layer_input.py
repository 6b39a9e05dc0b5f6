"""Layer-input swap: with its own recompute, around a model that recomputes, and by decorators."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import swapline.sim
from swapline.layer_input import (
    LayerInputs,
    SwapLayerInputs,
    swap_layer_input_forward_wrapper,
    swap_layer_input_init_wrapper,
)


class TransformerLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, hidden_states, mask=None):
        out = self.down(torch.nn.functional.gelu(self.up(hidden_states)))
        return hidden_states + (out if mask is None else out * mask)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 64)
        self.layers = nn.ModuleList(TransformerLayer() for _ in range(4))

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return h


def with_recompute(model: Model, x: torch.Tensor, mask: torch.Tensor) -> None:
    device = x.device
    h = model.embed(x)
    # [recompute
    inputs = LayerInputs(device, num_layers=len(model.layers))
    for layer in model.layers:
        h = inputs.recompute(layer, h, mask=mask)  # in place of torch.utils.checkpoint.checkpoint
    # recompute]
    h.sum().backward()
    print("recompute:", inputs.stats()["num_swapped_out"], "inputs swapped")


def around_a_model(model: Model, data: list[torch.Tensor]) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    # [model
    with SwapLayerInputs(model) as swapped:
        for batch in data:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    # model]
    print("model:", swapped.stats()["num_swapped_out"], "inputs swapped")


def with_decorators(x: torch.Tensor) -> None:
    # [decorators
    TransformerLayer.__init__ = swap_layer_input_init_wrapper(TransformerLayer.__init__)
    TransformerLayer.forward = swap_layer_input_forward_wrapper(TransformerLayer.forward)
    # decorators]
    layers = nn.ModuleList(TransformerLayer() for _ in range(4)).to(x.device)
    h = x.clone().requires_grad_() * 1
    for layer in layers:
        h = checkpoint(layer, h, use_reentrant=True)
    h.sum().backward()
    group = layers[0].swap_manager.group
    print("decorators:", group.stats()["num_swapped_out"], "inputs swapped")


def main() -> None:
    device = torch.device("sim:0")
    model, x = Model().to(device), torch.randn(16, 64, device=device)
    with_recompute(model, x, torch.ones(64, device=device))
    around_a_model(model, [x, x])
    with_decorators(x)
    torch.sim.synchronize()
    print("races:", swapline.sim.num_races())


if __name__ == "__main__":
    main()
