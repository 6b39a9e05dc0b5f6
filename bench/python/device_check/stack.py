"""A stack of recomputed layers with the shapes of Llama 3, and how many of them fit."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from accelerator import GIB, Accelerator, host_bytes


@dataclasses.dataclass(frozen=True)
class Shape:
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    seq: int
    num_layers: int = 0  # 0: as many as fit
    copy_bytes: int = 32 << 20  # of one copy, as large as an input of 8B
    num_copies: int = 16
    optimizer_options: dict = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16

    @property
    def input_bytes(self) -> int:
        return self.seq * self.hidden * self.dtype.itemsize

    @property
    def layer_params(self) -> int:
        attention = 2 * self.hidden * (self.hidden + self.kv_width)
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def kv_width(self) -> int:
        return self.hidden // self.heads * self.kv_heads

    @property
    def state_bytes(self) -> int:
        """Of a layer, as of its parameters: both moments have the parameters' type."""
        return 2 * self.layer_params * self.dtype.itemsize

    @property
    def activation_bytes(self) -> int:
        """Roughly, of one layer that is recomputed, with the gradients of its activations."""
        return 2 * self.seq * (10 * self.hidden + 5 * self.ffn) * self.dtype.itemsize


# Chunks in proportion: a link without latency.
_SMALL = {"copy_bytes": 256 << 10, "num_copies": 8, "optimizer_options": {"copy_latency_s": 1e-9}}
SHAPES = {
    "8b": Shape(hidden=4096, ffn=14336, heads=32, kv_heads=8, seq=4096),
    "1b": Shape(hidden=2048, ffn=8192, heads=32, kv_heads=8, seq=2048),
    "tiny": Shape(hidden=64, ffn=224, heads=4, kv_heads=2, seq=128, num_layers=8, **_SMALL),
}
# Launching its work takes longer than the work: for times of the host.
LAUNCHES = Shape(hidden=128, ffn=256, heads=4, kv_heads=2, seq=128, num_layers=12)


def default_shape(accelerator: Accelerator) -> str:
    if not accelerator.is_real:
        return "tiny"
    return "8b" if accelerator.total_bytes() >= 24 * GIB else "1b"


def layers_that_fit(accelerator: Accelerator, shape: Shape, num_microbatches: int) -> int:
    """Without swap on the device: parameters, gradients, states, inputs; a tenth is left alone. And
    on the host: states, and parameters to compare with."""
    if shape.num_layers:
        return shape.num_layers
    parameter_bytes = shape.layer_params * shape.dtype.itemsize
    layer_bytes = 2 * parameter_bytes + shape.state_bytes + shape.input_bytes
    fixed_bytes = num_microbatches * shape.input_bytes + 2 * shape.activation_bytes
    on_device = (int(0.9 * accelerator.free_bytes()) - fixed_bytes) // layer_bytes
    on_host = int(0.6 * host_bytes()) // (shape.state_bytes + parameter_bytes)
    return max(4, min(on_device, on_host))


class Layer(nn.Module):
    """[1, seq, hidden] to the same: causal attention with shared keys and values, and SwiGLU. No
    rotary positions: they are no part of what is measured."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.attention_norm = nn.Parameter(torch.ones(shape.hidden))
        self.q = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k = nn.Linear(shape.hidden, shape.kv_width, bias=False)
        self.v = nn.Linear(shape.hidden, shape.kv_width, bias=False)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(shape.hidden))
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        h = hidden_states + self._attention(_normed(hidden_states, self.attention_norm))
        x = _normed(h, self.ffn_norm)
        return h + self.down(F.silu(self.gate(x)) * self.up(x))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        q = self.q(x).view(batch, seq, self.heads, -1).transpose(1, 2)
        k, v = (
            made.view(batch, seq, self.kv_heads, -1)
            .transpose(1, 2)
            .repeat_interleave(self.heads // self.kv_heads, dim=1)
            for made in (self.k(x), self.v(x))
        )
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(made.transpose(1, 2).reshape(batch, seq, hidden))


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)


class Stack(nn.Module):
    def __init__(self, shape: Shape, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape) for _ in range(num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 1  # nobody else's, as what an embedding makes
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False, preserve_rng_state=False)
        return h.float().square().mean()


def make_stack(accelerator: Accelerator, shape: Shape, num_layers: int) -> Stack:
    """On the device, with the same values each time."""
    torch.manual_seed(0)
    with torch.device("meta"):
        stack = Stack(shape, num_layers)
    stack = stack.to(shape.dtype).to_empty(device=accelerator.device)
    with torch.no_grad():
        for parameter in stack.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1)
            else:
                parameter.normal_(std=0.02)
    return stack


def make_batches(accelerator: Accelerator, shape: Shape, count: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    size = (1, shape.seq, shape.hidden)
    return [torch.randn(size, device=accelerator.device, dtype=shape.dtype) for _ in range(count)]
