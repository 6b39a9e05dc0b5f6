"""Muon for matrices and AdamW for the rest, in one optimizer."""

from typing import Any

from torch import Tensor

from swapline import _core
from swapline.optim.adam import adam_core_settings, adam_settings, check_adam_group
from swapline.optim.base import SwapOptimizer
from swapline.optim.engine import Group, Rule
from swapline.optim.options import SwapOptions
from swapline.optim.shards import is_dtensor

# What torch.optim.AdamW has where a group of its part does not say.
_ADAMW_DEFAULTS = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 1e-2,
    "amsgrad": False,
    "maximize": False,
    "decoupled_weight_decay": True,
}
_LR_RULES = (None, "original", "match_rms_adamw")


def has_matrices(group: Group) -> bool:
    return bool(group.get("use_muon", True))


def _lr(group: Group) -> float:
    if isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu":
        raise ValueError(
            f"lr is a tensor on {group['lr'].device}; Muon's is needed on the host: give a number"
        )
    return float(group["lr"])


class MuonRule(Rule):
    def __init__(self, options: SwapOptions) -> None:
        self._options = options

    def settings(self, group: Group) -> tuple:
        if not has_matrices(group):
            return adam_settings(group)
        return (
            _lr(group),
            float(group["weight_decay"]),
            float(group["momentum"]),
            bool(group["nesterov"]),
            tuple(float(c) for c in group["ns_coefficients"]),
            float(group["eps"]),
            int(group["ns_steps"]),
            group["adjust_lr_fn"],
            bool(group.get("hybrid_ns", False)),
        )

    def core_settings(self, group: Group) -> "_core.MuonSettings | _core.AdamSettings":
        if not has_matrices(group):
            return adam_core_settings(group)
        lr, weight_decay, momentum, nesterov, coefficients, eps, steps, rule, hybrid = (
            self.settings(group)
        )
        return _core.MuonSettings(
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            ns_coefficients=coefficients,
            eps=eps,
            ns_steps=steps,
            match_rms_adamw=rule == "match_rms_adamw",
            hybrid_ns=hybrid,
        )

    def structure(self, group: Group) -> frozenset[str]:
        if has_matrices(group):
            return frozenset(["muon"])
        return frozenset(["adamw", "amsgrad"] if group["amsgrad"] else ["adamw"])

    def check_group(self, group: Group, where: str) -> None:
        if not has_matrices(group):
            check_adam_group(group, where)
            return
        if group["adjust_lr_fn"] not in _LR_RULES:
            raise ValueError(
                f"adjust_lr_fn of {where} must be None, original or match_rms_adamw, got "
                f"{group['adjust_lr_fn']!r}"
            )
        for i, param in enumerate(group["params"]):
            if is_dtensor(param) and not _has_whole_matrices(param):
                raise ValueError(
                    f"parameter {i} of {where} has sizes {tuple(param.shape)} placed "
                    f"{param.placements}, and Muon updates whole matrices: shard [E, m, n] in its "
                    "first dimension, replicate it, or give it to AdamW (use_muon=False)"
                )

    def make(
        self, contexts: list, groups: list[tuple[Group, list[Tensor]]]
    ) -> tuple["_core.Optimizer", list[int]]:
        matrices = [(ps, self.core_settings(g)) for g, ps in groups if has_matrices(g)]
        others = [(ps, self.core_settings(g)) for g, ps in groups if not has_matrices(g)]
        core = _core.Muon(
            contexts, matrices, others, self._options.for_engine(_core.AdamKernel.AUTO)
        )
        # C++ numbers groups of matrices first.
        numbers, num_matrices, num_others = [], 0, len(matrices)
        for group, _ in groups:
            if has_matrices(group):
                numbers.append(num_matrices)
                num_matrices += 1
            else:
                numbers.append(num_others)
                num_others += 1
        return core, numbers


def _has_whole_matrices(param: Tensor) -> bool:
    first_matrix_dim = param.dim() - 2
    return all(
        size == 1
        or placement.is_replicate()
        or (placement.is_shard() and placement.dim < first_matrix_dim)
        for size, placement in zip(param.device_mesh.shape, param.placements)
    )


class Muon(SwapOptimizer):
    """torch.optim.Muon with its arguments, and swapline.optim.options.SwapOptions'.

    params: matrices [m, n], or [E, m, n] for E of them. Groups with use_muon=False are updated by
        AdamW, in the same step and through the same slots: embeddings, heads, norms, biases. What
        such a group does not say (lr, betas, eps, weight_decay, amsgrad, maximize) is as in
        torch.optim.AdamW.
    hybrid_ns: Newton-Schulz iterations beyond the eighth with coefficients (2, -1.5, 0.5); needs
        ns_steps above 8.
    context: see Adam.

    There is no grad_scale: torch.amp.GradScaler unscales the gradients and leaves out steps itself.
    A tensor lr must be on the host, and counts as the number that it holds.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        hybrid_ns: bool = False,
        context: Any = None,
        **swap_options: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        if hybrid_ns:
            defaults["hybrid_ns"] = True  # only then: torch.optim's checkpoints have no such key
        super().__init__(params, defaults, SwapOptions(**swap_options), context)

    def _make_rule(self) -> Rule:
        return MuonRule(self._swap_options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        is_of_adamw = isinstance(param_group, dict) and not has_matrices(param_group)
        own = set(param_group) if is_of_adamw else set()
        if is_of_adamw:
            for name, value in _ADAMW_DEFAULTS.items():
                param_group.setdefault(name, value)
        super().add_param_group(param_group)
        if is_of_adamw:
            for name in self.defaults.keys() - _ADAMW_DEFAULTS.keys() - own:
                del param_group[name]
