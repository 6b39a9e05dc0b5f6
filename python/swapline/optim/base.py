"""What AdamW, Adam and Muon have in common: a torch.optim.Optimizer over the C++ engine."""

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from swapline.optim.engine import Engine, Rule, contexts_for
from swapline.optim.options import Contexts, SwapOptions
from swapline.optim.states import States

# How an update is computed, not what it computes: a loaded checkpoint does not change it.
_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")


class SwapOptimizer(Optimizer):
    """torch.optim.Optimizer's contract holds. Beyond it: prefetch(), drain(), stats(),
    device_state_bytes(), take_step_times().

    Work is enqueued on the streams that are current when step() or prefetch() is called; neither
    waits for the device. Not thread-safe. A step that fails before its first update changes nothing
    and may be repeated; a later failure is repeated by every later step, and its message says what
    was updated. In no case, Ctrl-C included, is a copy in flight or a swapped state on the device
    afterwards.
    """

    def __init__(self, params: Any, defaults: dict[str, Any], options: SwapOptions, context: Any):
        self._swap_options = options
        self._contexts = Contexts(context)
        self._engine: Engine | None = None
        self._states = States()
        self._is_built = False
        super().__init__(params, defaults)
        self._build()

    # For subclasses.

    def _make_rule(self) -> Rule:
        raise NotImplementedError

    def _supports_amp_scaling(self) -> bool:
        return False

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Read by torch.amp.GradScaler: whether step() takes scaled gradients as they are. Where it
        does not, the scaler unscales them and leaves steps out itself."""
        return self._supports_amp_scaling()

    # The engine.

    def _make_engine(self, groups: list[dict[str, Any]]) -> Engine | None:
        """None without parameters."""
        if not any(group["params"] for group in groups):
            return None
        contexts = contexts_for(self._contexts, self._swap_options.needs_contexts())
        return Engine(self._make_rule(), contexts, groups)

    def _build(self) -> None:
        self._engine = self._make_engine(self.param_groups)
        self._is_built = True

    def _rebuild(self, groups: list[dict[str, Any]]) -> None:
        """For groups that the engine was not made for. Nothing is changed if it throws."""
        engine = self._make_engine(groups)
        if self._engine is not None and engine is not None:
            self._states.look(self._engine)
            self._states.move(engine)
        self._engine = engine

    def _params(self) -> list[Tensor]:
        return list(chain.from_iterable(group["params"] for group in self.param_groups))

    def _bring_up_to_date(self) -> None:
        """Tells the engine what users have changed in param_groups and state."""
        if self._engine is None or not self._engine.fits(self.param_groups):
            self._rebuild(self.param_groups)
        if self._engine is not None:
            self._engine.send_settings(self.param_groups)
            self._states.take_over(self._engine)

    # torch.optim.Optimizer's interface.

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient, and only those.

        closure: evaluates the model and returns the loss; called once, with gradients enabled.
        Returns the loss, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._bring_up_to_date()
        if self._engine is not None:
            try:
                self._engine.step(
                    getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
                )
            except BaseException:  # KeyboardInterrupt, too, leaves nothing in flight
                self._engine.core.drain()
                raise
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim's; also gives back device memory whose copies out are done."""
        self._contexts.settle_done()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Nothing is changed if it throws: HostMemoryError where the states have no room."""
        super().add_param_group(param_group)
        if not self._is_built:
            return  # called by the constructor: one engine for all
        group = self.param_groups[-1]
        try:
            devices = {param.device for param in group["params"]}
            if self._engine is None or not devices <= set(self._engine.devices):
                self._rebuild(self.param_groups)
            else:
                self._engine.add_group(self.param_groups)
        except BaseException:
            self.param_groups.pop()
            raise

    @property
    def state(self) -> defaultdict[Tensor, dict[str, Any]]:
        """Of each parameter that was updated, its states under torch.optim's names: host tensors of
        its sizes (DTensors with host shards for DTensors), `step` an fp32 scalar. Those that stay
        on the device (placement "device", swap_optimizer_min_bytes) are shown where they are.

        Waits for copies in flight. The tensors are the engine's memory: changes count from the next
        step(), and after a step they are whole again when state is read anew, or after drain().
        """
        if self._engine is None:
            return self._states.shown
        return self._states.look(self._engine)

    @state.setter
    def state(self, value: dict[Tensor, dict[str, Any]]) -> None:
        if self._engine is not None:
            self._states.look(self._engine)  # so that what is there ends
        self._states.replace(value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch.optim's, but states are copied into host memory as they are, without a detour by
        the device; and how the update is computed (foreach, fused) is not taken from a checkpoint.
        ValueError for one that does not fit, with nothing changed.
        """
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = _or_else(hook(self, state_dict), state_dict)
        groups = self._loaded_groups(state_dict["param_groups"])
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        by_number = dict(zip(numbers, self._params()))
        loaded = {by_number.get(key, key): value for key, value in state_dict["state"].items()}
        engine = self._engine
        if engine is not None:
            if engine.fits(groups):
                self._states.load(engine, loaded)
            else:
                engine = self._make_engine(groups)
                states = States()
                states.load(engine, loaded)
                self._engine, self._states = engine, states
        self.param_groups = groups
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _loaded_groups(self, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(saved) != len(self.param_groups):
            raise ValueError(
                f"loaded state dict has {len(saved)} parameter groups, the optimizer "
                f"{len(self.param_groups)}"
            )
        groups = []
        for i, (group, loaded) in enumerate(zip(self.param_groups, saved)):
            if len(loaded["params"]) != len(group["params"]):
                raise ValueError(
                    f"group {i} of the loaded state dict has {len(loaded['params'])} parameters, "
                    f"that of the optimizer {len(group['params'])}"
                )
            new = deepcopy({key: value for key, value in loaded.items() if key != "params"})
            for key, value in group.items():
                if key in _IMPLEMENTATION:
                    new[key] = value
                else:
                    new.setdefault(key, value)
            new["params"] = group["params"]
            groups.append(new)
        return groups

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state | {"_swap_options": self._swap_options, "_contexts": self._contexts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = state.copy()
        loaded = state.pop("state")
        self._engine = None
        self._states = States()
        self._is_built = False
        super().__setstate__(state)
        self._build()
        if self._engine is not None:
            self._states.load(self._engine, loaded)

    # Beyond torch.optim.

    def prefetch(self) -> None:
        """Begins to load the first chunks, behind what is enqueued on the compute stream: call it
        before the last part of backward, or before clipping. Does nothing when done already, or
        while the device has no room."""
        self._bring_up_to_date()
        if self._engine is not None:
            self._engine.prefetch()

    def drain(self) -> None:
        """Blocks the calling thread until the states in host memory are whole; drops what was
        prefetched or kept on the device, which the next step() loads again."""
        if self._engine is not None:
            self._engine.core.drain()

    def stats(self) -> dict[str, int]:
        """Over all devices; bytes and counts since the optimizer was made: num_chunks, num_slots,
        slot_bytes, arena_bytes (the most that step() holds of states), scratch_bytes, kept_bytes,
        mapped_bytes, state_bytes, num_copies_in, num_copies_out, num_launches, num_shortages."""
        return {} if self._engine is None else self._engine.core.stats()

    def device_state_bytes(self) -> int:
        """State bytes on the devices now."""
        return 0 if self._engine is None else self._engine.core.device_state_bytes()

    def take_step_times(self) -> list[dict[str, float]]:
        """Times of the steps since the last call, oldest first, in ms of the device: h2d_ms,
        d2h_ms, update_ms, step_ms, exposed_ms. Of one device, with SwapContext(timing=True). Waits.
        """
        return [] if self._engine is None else self._engine.core.take_step_times()


def _or_else(value: Any, default: Any) -> Any:
    return default if value is None else value
