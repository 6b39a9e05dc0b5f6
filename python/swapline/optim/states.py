"""optimizer.state: host tensors that are the engine's own memory, and what users do to them."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from swapline.optim.engine import Engine, local_value
from swapline.optim.shards import local_part


class States:
    """What optimizer.state shows. The engine's tensors stay the same objects over all steps.

    A user may write into them, put other tensors in their place, delete them, or replace the whole:
    the next step, or the next look, takes that over. Entries that are not the engine's are kept.
    """

    def __init__(self) -> None:
        self.shown: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self._handed: dict[Tensor, dict[str, Tensor]] = {}
        self._was_seen = False

    def replace(self, shown: dict) -> None:
        """What the user puts in place of the whole."""
        self.shown = shown if isinstance(shown, defaultdict) else defaultdict(dict, shown)
        self._was_seen = True

    def look(self, engine: Engine) -> defaultdict[Any, dict[str, Any]]:
        """Waits for copies in flight; then everything shown is true."""
        engine.core.drain()
        for param in engine.params:
            if param not in self._handed:
                states = engine.states(param)
                if states:
                    self._handed[param] = states
                    _put_first(self.shown[param], states)
        self._was_seen = True
        return self.shown

    def take_over(self, engine: Engine) -> None:
        """Brings what the user has changed to the engine. Throws, with nothing changed, where it
        does not fit."""
        if not self._was_seen:
            return
        changed = {}
        for param, shown in self.shown.items():
            handed = self._handed.get(param)
            if not shown or not isinstance(param, Tensor) or param not in engine.params:
                continue
            if handed is None or any(shown.get(k) is not v for k, v in handed.items()):
                changed[param] = shown
        gone = [param for param in self._handed if not self.shown.get(param)]
        if changed or gone:
            self._fill(engine, changed, gone)
        self._was_seen = False

    def load(self, engine: Engine, loaded: dict[Any, Any]) -> None:
        """Copies `loaded`, by parameter, into the engine's memory: all, or nothing if it throws."""
        self.look(engine)
        mine = {p: states for p, states in loaded.items() if isinstance(p, Tensor) and states}
        gone = [param for param in self._handed if param not in mine]
        before = self.shown
        self.shown = defaultdict(dict, loaded)
        try:
            self._fill(engine, {param: dict(states) for param, states in mine.items()}, gone)
        except BaseException:
            self.shown = before
            raise

    def move(self, new: Engine) -> None:
        """To an engine of other groups: states of the parameters that it has, too, are copied."""
        handed = self._handed
        self._handed = {}
        kept = {p: s for p, s in self.shown.items() if isinstance(p, Tensor) and p in new.params}
        try:
            self._fill(new, {p: s for p, s in kept.items() if s}, [])
        except BaseException:
            self._handed = handed
            raise
        for param in [p for p in handed if p not in new.params]:
            self.shown.pop(param, None)

    def _fill(self, engine: Engine, values: dict[Tensor, dict], gone: list[Tensor]) -> None:
        checked = {}
        for number, (param, states) in enumerate(values.items()):
            where = f"the state of a parameter of sizes {tuple(param.shape)} (entry {number})"
            checked[param] = self._checked(engine, param, states, where)
        made = []
        try:
            for param in values:
                if param not in self._handed:
                    made.append(param)
                    self._handed[param] = engine.make_states(param)
        except BaseException:
            for param in made:
                if self._handed.pop(param, None):
                    engine.clear_states(param)
            raise
        with torch.no_grad():
            self._free_of_each_other(checked)
            for param, states in checked.items():
                for name, value in states.items():
                    target = local_part(self._handed[param][name])
                    if not _is_same_memory(target, value):
                        target.copy_(value)
                # The user's own dict where it is one: he may hold it.
                values[param].update(self._handed[param])
                self.shown[param] = values[param]
        for param in gone:
            if param in engine.params:
                engine.clear_states(param)
            del self._handed[param]

    def _free_of_each_other(self, values: dict[Tensor, dict[str, Tensor]]) -> None:
        """Copies values that are the engine's memory for something else, e.g. states that were
        exchanged between parameters: they would be overwritten before they are read."""
        owned = {
            local_part(state).untyped_storage().data_ptr()
            for states in self._handed.values()
            for state in states.values()
        }
        for param, states in values.items():
            for name, value in states.items():
                target = local_part(self._handed[param][name])
                is_owned = value.untyped_storage().data_ptr() in owned
                if is_owned and not _is_same_memory(target, value):
                    states[name] = value.clone()

    def _checked(
        self, engine: Engine, param: Tensor, states: dict, where: str
    ) -> dict[str, Tensor]:
        names = engine.state_names(param)
        if "master_param" in states and "master_param" not in names:
            raise ValueError(
                f"{where} has a master_param, and the optimizer keeps none for it: make it with "
                "master_weights=True, or leave master_param out"
            )
        checked = {}
        for name in names:
            if name in states:
                checked[name] = local_value(param, name, states[name], where)
            elif name == "master_param":
                # Of a checkpoint without masters: begins as the parameter is.
                checked[name] = local_part(param.detach())
            else:
                raise ValueError(f"{where} has no {name}, only {', '.join(map(str, states))}")
        return checked


def _put_first(entry: dict[str, Any], states: dict[str, Tensor]) -> None:
    """Into the same dict, which the user may hold: his own entries come behind torch.optim's."""
    others = dict(entry)
    entry.clear()
    entry.update(states | others)


def _is_same_memory(a: Tensor, b: Tensor) -> bool:
    return (
        a.device == b.device
        and a.dtype == b.dtype
        and a.data_ptr() == b.data_ptr()
        and a.stride() == b.stride()
    )
