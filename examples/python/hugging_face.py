"""A model of transformers, its gradient checkpointing swapped."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import swapline.sim
from swapline import layer_input, optim

# [hugging face
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    use_cache=False,
)
model = LlamaForCausalLM(config).to("sim")
model.activation_checkpointing_enable()  # before 5.24: gradient_checkpointing_enable()
model.train()
optimizer = optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 256, (2, 32)).to("sim")

with layer_input.SwapLayerInputs(model, layers=model.model.layers) as inputs:
    for step in range(4):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.5f}")
# hugging face]

assert inputs.stats()["num_swapped_out"] > 0
assert swapline.sim.num_races() == 0
