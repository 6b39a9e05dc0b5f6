"""AdamW, Adam and Muon in place of torch.optim's, with their states in pinned host memory.

    optimizer = swapline.optim.AdamW(model.parameters(), lr=3e-4, swap_optimizer_times=16)

In step() the states pass through the device in chunks; outside of it none is there. Results are
those of torch.optim with fused=True, bit for bit. Everything else is as in torch.optim: schedulers
and param_groups, hooks, closures, GradScaler, state_dict() and checkpoints, which both can read.
optimizer.state holds ordinary host tensors: reading it waits for copies in flight, and changes to
them before the next step() count.

A state dict refers to those tensors, as torch.optim's does, and they are on the CPU already: what
has cpu_offload=True makes no copy of them. Copy what shall outlive the next step(), or let
torch.distributed.checkpoint.async_save() do so.

A parameter may be in several optimizers, as in torch.optim: each has states of its own for it.
"""

from swapline.optim.adam import Adam, AdamW
from swapline.optim.muon import Muon

__all__ = ["Adam", "AdamW", "Muon"]
