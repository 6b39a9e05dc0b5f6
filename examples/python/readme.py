# ruff: noqa: F401
"""README's Python: a training run without swap, then with it; the losses are the same."""

# [readme
import torch
from torch.utils.checkpoint import checkpoint_sequential
import swapline.sim  # the simulated device; leave it out on CUDA, NPU or XPU
from swapline import layer_input, optim

for AdamW, enabled in ((torch.optim.AdamW, False), (optim.AdamW, True)):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).to("sim")
    batch = torch.randn(64, 256, device="sim", requires_grad=True)
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    with layer_input.SwapLayerInputs(model, enabled=enabled):
        for step in range(5):
            loss = checkpoint_sequential(model, 8, batch, use_reentrant=False).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"{step}  {loss.item():.9f}")
# readme]
