"""An override for torchtitan 0.3: attention within documents, by operators of any device."""

import dataclasses

import torch
import torch.nn.functional as F
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import VarlenAttention


class DenseAttention(VarlenAttention):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def forward(self, q, k, v, *, attention_masks, scale=None, **kwargs):
        """q, k, v: [B, L, N, H]."""
        batch, length = q.shape[:2]
        starts = torch.zeros(batch * length, dtype=torch.int32, device=q.device)
        starts[attention_masks.cu_seq_q[:-1].long()] = 1
        document = starts.cumsum(0).view(batch, 1, length)
        mask = (document.unsqueeze(-1) == document.unsqueeze(-2)).tril()
        out = F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)),
            attn_mask=mask,
            scale=scale,
            enable_gqa=kwargs.get("enable_gqa", False),
        )
        return out.transpose(1, 2).contiguous()


@override(target=VarlenAttention.Config)
def dense_attention(config):
    return derive(config, DenseAttention.Config)
