"""Swap in a training loop of one's own: what changes, and what it saves."""

import torch

import swapline.sim
from swapline import layer_input, optim

DEVICE = "sim"


class Layer(torch.nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = torch.nn.RMSNorm(dim)
        self.up = torch.nn.Linear(dim, 4 * dim)
        self.down = torch.nn.Linear(4 * dim, dim)

    def forward(self, hidden_states: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return hidden_states + scale * self.down(self.up(self.norm(hidden_states)).relu())


torch.manual_seed(0)
embedding = torch.nn.Embedding(256, 64)
layers = torch.nn.ModuleList(Layer(64) for _ in range(8))
head = torch.nn.Linear(64, 256)
model = torch.nn.ModuleList([embedding, layers, head]).to(DEVICE)
tokens = torch.randint(0, 256, (4, 129)).to(DEVICE)

# [own loop
context = swapline.SwapContext(torch.device(DEVICE), max_host_bytes=4 << 30)
inputs = layer_input.LayerInputs(context, num_layers=len(layers))
optimizer = optim.AdamW(model.parameters(), lr=1e-3, swap_optimizer_times=16, context=context)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)

for step in range(10):
    hidden_states = embedding(tokens[:, :-1])
    for layer in layers:  # in place of torch.utils.checkpoint.checkpoint(layer, ...)
        hidden_states = inputs.recompute(layer, hidden_states, scale=0.5)
    logits = head(hidden_states)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.prefetch()  # the first states come in while gradients are clipped
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    print(f"step {step}  loss {loss.item():.5f}")

torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "own_loop.pt")
# own loop]

assert inputs.stats()["num_swapped_out"] > 0
assert optimizer.device_state_bytes() == 0
assert swapline.sim.num_races() == 0
