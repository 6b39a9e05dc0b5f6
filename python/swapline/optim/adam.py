"""AdamW and Adam."""

from typing import Any

import torch
from torch import Tensor

from swapline import _core
from swapline.optim.base import SwapOptimizer
from swapline.optim.engine import Group, Rule, lr_key, lr_of
from swapline.optim.options import SwapOptions

_KERNELS = _core.AdamKernel


def adam_settings(group: Group) -> tuple:
    beta1, beta2 = group["betas"]
    return (
        lr_key(group),
        float(beta1),
        float(beta2),
        float(group["eps"]),
        float(group["weight_decay"]),
        bool(group["decoupled_weight_decay"]),
        bool(group["amsgrad"]),
        bool(group["maximize"]),
    )


def adam_core_settings(group: Group) -> "_core.AdamSettings":
    lr, lr_tensor = lr_of(group)
    _, beta1, beta2, eps, weight_decay, decoupled, amsgrad, maximize = adam_settings(group)
    return _core.AdamSettings(
        lr=lr,
        lr_tensor=lr_tensor,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        decoupled=decoupled,
        amsgrad=amsgrad,
        maximize=maximize,
    )


def check_adam_group(group: Group, where: str) -> None:
    if group.get("capturable"):
        raise ValueError(
            f"capturable of {where} is True, and step() cannot be captured in a graph: it copies "
            "states between host and device. Leave it False: step() does not make the host wait"
        )
    if group.get("differentiable"):
        raise ValueError(
            f"differentiable of {where} is True, and states in host memory have no gradients: "
            "leave it False, or use torch.optim"
        )
    for name, beta in zip(("beta1", "beta2"), group["betas"]):
        if isinstance(beta, Tensor) and beta.device.type != "cpu":
            raise ValueError(
                f"{name} of {where} is a tensor on {beta.device}, for which the host would have to "
                "wait: give a number"
            )


class AdamRule(Rule):
    def __init__(self, options: SwapOptions, kernel: "_core.AdamKernel") -> None:
        self._options = options
        self._kernel = kernel

    def settings(self, group: Group) -> tuple:
        return adam_settings(group)

    def core_settings(self, group: Group) -> "_core.AdamSettings":
        return adam_core_settings(group)

    def structure(self, group: Group) -> frozenset[str]:
        return frozenset(["amsgrad"] if group["amsgrad"] else [])  # a third state

    def check_group(self, group: Group, where: str) -> None:
        check_adam_group(group, where)

    def make(
        self, contexts: list, groups: list[tuple[Group, list[Tensor]]]
    ) -> tuple["_core.Optimizer", list[int]]:
        pairs = [(params, adam_core_settings(group)) for group, params in groups]
        core = _core.Adam(contexts, pairs, self._options.for_engine(self._kernel))
        return core, list(range(len(groups)))


class Adam(SwapOptimizer):
    """torch.optim.Adam with its arguments, and swapline.optim.options.SwapOptions'.

    context: a SwapContext, or a list with one for each device, to share streams and host memory
        with others; None: the optimizer's own.
    fused: True: torch's fused kernel, or an error on a device without it; False: _foreach_
        operators and their bits; None: fused where the device has it. param_groups then say which
        it is, so that torch.optim goes on with the same bits from a checkpoint.
    foreach: True: as fused=False. capturable, differentiable: must be False.
    lr, betas: numbers or 1-element tensors. A tensor lr on the device is never read by the host.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        context: Any = None,
        **swap_options: Any,
    ) -> None:
        if fused and foreach:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults, SwapOptions(**swap_options), context)

    def _fused_support(self) -> list["_core.FusedAdamSupport"]:
        """What each device of the parameters makes of torch's fused kernel; each is tried once."""
        decoupled = bool(self.defaults["decoupled_weight_decay"])
        for device in {param.device for param in self._params()}:
            if device not in self._tried:
                self._tried[device] = _core.FusedAdamSupport(device, decoupled)
        return list(self._tried.values())

    def _kernel(self) -> "_core.AdamKernel":
        if self.defaults["fused"]:
            return _KERNELS.FUSED
        if self.defaults["foreach"] or self.defaults["fused"] is False:
            return _KERNELS.PORTABLE
        return _KERNELS.AUTO

    def _make_rule(self) -> Rule:
        return AdamRule(self._swap_options, self._kernel())

    def _is_fused(self) -> bool:
        if self._kernel() == _KERNELS.AUTO:
            return all(support.runs() for support in self._fused_support())
        return self._kernel() == _KERNELS.FUSED

    def _build(self) -> None:
        self._tried: dict[torch.device, _core.FusedAdamSupport] = {}
        super()._build()
        name = "fused" if self._is_fused() else "foreach"
        for flags in (self.defaults, *self.param_groups):
            if flags["fused"] is None and flags["foreach"] is None:
                flags[name] = True

    def _supports_amp_scaling(self) -> bool:
        return self._engine is not None and self._engine.core.heeds_scaling()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        for name in ("fused", "foreach"):
            if name in param_group and param_group[name] not in (None, self.defaults[name]):
                raise ValueError(
                    f"{name} of a group is {param_group[name]}, and the optimizer's is "
                    f"{self.defaults[name]}: it is one for all groups"
                )
        super().add_param_group(param_group)


class AdamW(Adam):
    """torch.optim.AdamW with its arguments, and swapline.optim.options.SwapOptions'. See Adam."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        context: Any = None,
        **swap_options: Any,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            context=context,
            **swap_options,
        )
