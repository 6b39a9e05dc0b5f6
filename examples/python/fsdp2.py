"""FSDP2 with swapped optimizer states and layer inputs: torchrun --nproc-per-node 2 fsdp2.py"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import swapline.sim
from swapline import layer_input, optim

checkpoint_id = sys.argv[1] if len(sys.argv) > 1 else "fsdp2_checkpoint"

# [fsdp2
dist.init_process_group("cpu:gloo,sim:swapline")  # on CUDA: "cpu:gloo,cuda:nccl"
device = torch.device("sim", dist.get_rank())
torch.accelerator.set_device_index(device.index)

torch.manual_seed(0)
layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(4)]
model = torch.nn.Sequential(*map(checkpoint_wrapper, layers)).to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = optim.AdamW(model.parameters(), lr=1e-3)  # of DTensors, each rank its shards

torch.manual_seed(dist.get_rank())
batch = torch.randn(4, 16, 64).to(device)
with layer_input.SwapLayerInputs(model, layers=list(model)):
    for step in range(3):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

# Saved from host memory: no state goes through the device.
model_state, optimizer_state = get_state_dict(model, optimizer)
state = {"model": model_state, "optimizer": optimizer_state}
dcp.save(state, checkpoint_id=checkpoint_id)
dcp.load(state, checkpoint_id=checkpoint_id)  # into any other number of processes
set_state_dict(
    model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
)
# fsdp2]

print(f"rank {dist.get_rank()}  loss {loss.item():.5f}  races {swapline.sim.num_races()}")
assert optimizer.device_state_bytes() == 0
assert swapline.sim.num_races() == 0
dist.destroy_process_group()
