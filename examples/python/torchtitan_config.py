"""Configs for torchtitan 0.3 that swap: --module torchtitan_config --config llama3_swap"""

# [config
from torchtitan.components.optimizer import ParamGroupConfig
from torchtitan.models.llama3.config_registry import llama3_debugmodel_varlen_attn
from torchtitan.trainer import Trainer

from swapline.torchtitan import SwapFullAC, SwapOptimizersContainer


def llama3_swap() -> Trainer.Config:
    config = llama3_debugmodel_varlen_attn()
    config.optimizer = SwapOptimizersContainer.Config(
        param_groups=config.optimizer.param_groups,
        swap_optimizer=True,
        swap_optimizer_times=16,
    )
    config.activation_checkpoint = SwapFullAC.Config()  # recompute, with the layers' inputs swapped
    return config


def llama3_muon() -> Trainer.Config:
    config = llama3_swap()
    adamw = {"lr": 8e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    muon = {"lr": 8e-4, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    config.optimizer.param_groups = [  # the first pattern that matches
        ParamGroupConfig(
            pattern=r"embeddings|lm_head|norm", optimizer_name="AdamW", optimizer_kwargs=adamw
        ),
        ParamGroupConfig(pattern=r".*", optimizer_name="Muon", optimizer_kwargs=muon),
    ]
    return config


# config]
