"""Muon in torchtitan 0.2: which parameters it updates, and with what settings."""

import dataclasses
from typing import Any, Literal

from torch import nn

from swapline import optim

# A matrix that is looked up or projects to the vocabulary is AdamW's.
_ADAMW_NAMES = ("embed", "lm_head", "output")


@dataclasses.dataclass(kw_only=True)
class MuonFields:
    muon_lr: float | None = None
    """Learning rate of Muon's matrices with muon_adjust_lr_fn original; None: lr."""

    muon_momentum: float = 0.95
    muon_enable_nesterov: bool = True

    muon_ns_steps: int = 5
    """Newton-Schulz iterations."""

    muon_adjust_lr_fn: Literal["original", "match_rms_adamw"] = "match_rms_adamw"
    """original: by the matrix's shape alone; match_rms_adamw: updates as large as AdamW's, at
    lr."""

    muon_hybrid_ns: bool = False
    """Iterations beyond the eighth converge instead of speeding up; needs muon_ns_steps above 8."""


def is_for_muon(name: str, param: nn.Parameter) -> bool:
    """Matrices, and stacks of them (experts), but for embeddings and the output."""
    return param.ndim in (2, 3) and not any(part in name for part in _ADAMW_NAMES)


def build_muon(model: nn.Module, config: Any, swap_options: dict[str, Any]) -> optim.Muon:
    """One optimizer of a model's trainable parameters: Muon's part and AdamW's."""
    matches_adamw = config.muon_adjust_lr_fn == "match_rms_adamw"
    if matches_adamw and config.muon_lr is not None:
        raise ValueError(
            f"muon_lr is {config.muon_lr} and has no effect with muon_adjust_lr_fn "
            "match_rms_adamw, whose learning rate is lr: leave it out, or set muon_adjust_lr_fn "
            "to original"
        )
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in trainable if is_for_muon(name, p)]
    others = [p for name, p in trainable if not is_for_muon(name, p)]
    groups = [
        {
            "params": matrices,
            "use_muon": True,
            "lr": config.lr if config.muon_lr is None else config.muon_lr,
            "weight_decay": config.weight_decay,
            "momentum": config.muon_momentum,
            "nesterov": config.muon_enable_nesterov,
            "ns_steps": config.muon_ns_steps,
            "adjust_lr_fn": config.muon_adjust_lr_fn,
            "hybrid_ns": config.muon_hybrid_ns,
        },
        {
            "params": others,
            "use_muon": False,
            "lr": config.lr,
            "betas": (config.beta1, config.beta2),
            "eps": config.eps,
            "weight_decay": config.weight_decay,
        },
    ]
    return optim.Muon([group for group in groups if group["params"]], **swap_options)
