"""The C++ optimizer for a list of torch.optim's param groups."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from swapline import _core
from swapline.optim.options import Contexts
from swapline.optim.shards import Shards, check_param, is_dtensor, like_param, local_part

Group = dict[str, Any]


class Rule:
    """What the engine needs to know of Adam or Muon."""

    def settings(self, group: Group) -> tuple:
        """The group's hyperparameters as plain numbers and names, to see whether they changed."""
        raise NotImplementedError

    def core_settings(self, group: Group) -> Any:
        """The same for C++."""
        raise NotImplementedError

    def structure(self, group: Group) -> frozenset[str]:
        """What an engine must have been made with for it to update the group."""
        raise NotImplementedError

    def check_group(self, group: Group, where: str) -> None:
        """Throws for what is not supported."""
        raise NotImplementedError

    def make(
        self, contexts: list, groups: list[tuple[Group, list[Tensor]]]
    ) -> tuple["_core.Optimizer", list[int]]:
        """The C++ optimizer, and the number it has given each group."""
        raise NotImplementedError


def lr_of(group: Group) -> tuple[float, Tensor | None]:
    """A group's learning rate: a number, or a device's tensor that the host does not read."""
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        return float(lr), None
    if lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got sizes {tuple(lr.shape)}")
    if lr.device.type == "cpu":
        return float(lr), None
    return 0.0, local_part(lr.detach())


def lr_key(group: Group) -> float | int:
    lr = group["lr"]
    return id(lr) if isinstance(lr, Tensor) and lr.device.type != "cpu" else float(lr)


class Engine:
    """Throws at construction, with nothing changed, for parameters that cannot be optimized, and
    HostMemoryError where their states do not fit into host memory.
    """

    def __init__(self, rule: Rule, contexts: Callable[[torch.device], Any], groups: list[Group]):
        self.rule = rule
        self.shards = Shards()
        self._context_of = contexts
        listed = [(group, self._checked_params(i, group)) for i, group in enumerate(groups)]
        self.devices = list(dict.fromkeys(p.device for _, params in listed for p in params))
        own = [context for device in self.devices if (context := contexts(device)) is not None]
        self.core, self._numbers = rule.make(own, listed)
        self._sent = [rule.settings(group) for group in groups]
        self._note_layout(groups)

    def _checked_params(self, number: int, group: Group) -> list[Tensor]:
        self.rule.check_group(group, f"group {number}")
        for i, param in enumerate(group["params"]):
            check_param(param, f"parameter {i} of group {number}")
        return [self.shards.listed(param) for param in group["params"]]

    def _note_layout(self, groups: list[Group]) -> None:
        self.params = {param: None for group in groups for param in group["params"]}
        self._layout = [
            (list(map(id, group["params"])), self.rule.structure(group)) for group in groups
        ]

    def fits(self, groups: list[Group]) -> bool:
        """Whether these are still the groups that the engine was made for."""
        return len(groups) == len(self._layout) and all(
            list(map(id, group["params"])) == ids and self.rule.structure(group) <= structure
            for group, (ids, structure) in zip(groups, self._layout)
        )

    def add_group(self, groups: list[Group]) -> None:
        """Takes the last of `groups`; it knows the others."""
        group = groups[-1]
        known = list(self.shards._stand_ins)
        try:
            params = self._checked_params(len(groups) - 1, group)
            self.core.add_group(params, self.rule.core_settings(group))
        except BaseException:
            self.shards.forget([p for p in group["params"] if p not in known])
            raise
        self._numbers.append(len(self._numbers))
        self._sent.append(self.rule.settings(group))
        self._note_layout(groups)

    def send_settings(self, groups: list[Group]) -> None:
        for i, group in enumerate(groups):
            settings = self.rule.settings(group)
            if settings != self._sent[i]:
                self.core.set_group(self._numbers[i], self.rule.core_settings(group))
                self._sent[i] = settings

    def step(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        changed = self.shards.set()
        try:
            self.core.step(grad_scale, found_inf)
        finally:
            self.shards.release(changed)

    def prefetch(self) -> None:
        self.shards.follow_requires_grad()
        self.core.prefetch()

    def states(self, param: Tensor) -> dict[str, Tensor]:
        """By torch.optim's names, in its order; empty before the first step. Drains."""
        return self._shown(param, self.core.state(self.shards.listed(param)))

    def make_states(self, param: Tensor) -> dict[str, Tensor]:
        return self._shown(param, self.core.make_state(self.shards.listed(param)))

    def clear_states(self, param: Tensor) -> None:
        self.core.clear_state(self.shards.listed(param))

    def state_names(self, param: Tensor) -> list[str]:
        return self.core.state_names(self.shards.listed(param))

    def _shown(self, param: Tensor, states: dict[str, Tensor]) -> dict[str, Tensor]:
        if not states:
            return {}
        return {
            name: states[name] if name == "step" else like_param(param, states[name])
            for name in self.state_names(param)
        }


def local_value(param: Tensor, name: str, value: Any, where: str) -> Tensor:
    """What goes into a state's own memory: the shard of a DTensor. Throws where it does not fit."""
    if name == "step" and not isinstance(value, Tensor):
        return torch.tensor(float(value))
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} of {where} must be a tensor, got {type(value).__name__}")
    if name == "step":
        if value.numel() != 1:
            raise ValueError(f"step of {where} must be one number, got sizes {tuple(value.shape)}")
        return local_part(value).reshape(())
    if is_dtensor(value) and is_dtensor(param):
        if value.shape == param.shape and value.placements == param.placements:
            return local_part(value)
        raise ValueError(
            f"{name} of {where} has sizes {tuple(value.shape)} placed {value.placements}, the "
            f"parameter {tuple(param.shape)} placed {param.placements}: load it by "
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict, which reshards"
        )
    shard = local_part(param)
    if is_dtensor(value) or value.shape != shard.shape:
        hint = (
            " (its shard): load it by "
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict, which reshards"
            if is_dtensor(param)
            else ""
        )
        raise ValueError(
            f"{name} of {where} has sizes {tuple(value.shape)}, the parameter "
            f"{tuple(shard.shape)}{hint}"
        )
    return value


def contexts_for(contexts: Contexts, needed: bool) -> Callable[[torch.device], Any]:
    return contexts.of if needed else lambda device: None
