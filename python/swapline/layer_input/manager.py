"""The RFC's classes over the engine: SwapTensors, SwapLayerInputManager, is_valid_for_swap."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from swapline import _core
from swapline.layer_input.options import Check, make_context, make_options


def is_valid_for_swap(tensor: torch.Tensor, custom_check_fn: Check | None = None) -> bool:
    """Whether a tensor may be swapped.

    Not: CPU and meta tensors, parameters (leaves that require grad) and their views, empty
    storages, storages that are not resizable, sparse, quantised and wrapper tensors, and what
    custom_check_fn says no to.
    """
    if _core.swap_refusal(tensor):
        return False
    return custom_check_fn is None or bool(custom_check_fn(tensor))


class SwapTensors:
    """Tensors that leave the device and come back as one, in place.

        "device" --swap_to_host()--> "d2h" --wait_d2h_and_release_device_tensor()--> "host"
            ^                                                                          |
            '--wait_h2d_and_release_cpu_tensor()-- "h2d" <--swap_to_device()-----------'

    stat is where they are. A call in another state does nothing, as in the RFC. No call blocks the
    host: each orders the current stream. Slices, views and aliases come back as they were; each
    storage moves once. While they are out nobody may read them. When there is no host memory for
    them they stay, in "device".

    context: a SwapContext of the tensors' device; by default one of its own. Raises ValueError for
    a tensor that may not be swapped, saying why.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], context: _core.SwapContext | None = None
    ) -> None:
        self.tensors = list(tensors)
        for tensor in self.tensors:
            if reason := _core.swap_refusal(tensor):
                raise ValueError(f"SwapTensors: a tensor may not be swapped: {reason}")
        self._group: _core.SwapGroup | None = None
        if self.tensors:
            context = context or make_context(self.tensors[0].device)
            self._group = _core.SwapGroup(context, self.tensors, "SwapTensors")

    @property
    def stat(self) -> str:
        return self._group.state if self._group is not None else "device"

    @property
    def tensor_cpus(self) -> list[torch.Tensor | None]:
        """Copies of what is in pinned host memory, each in its tensor's shape and strides; None
        while there is nothing. Blocks the host until the copies out are done."""
        if self._group is None or not self._group.has_host_copy:
            return [None] * len(self.tensors)
        return self._group.host_tensors()

    def swap_to_host(self, stream: Any = None, async_op: bool = False) -> None:
        """Starts the copies out, behind what the current stream holds now; without async_op also
        lets go of the device memory. `stream` is there for the RFC's callers: the context has its
        own, one for each direction."""
        if self.stat != "device" or self._group is None:
            return
        if self._group.swap_out() and not async_op:
            self.wait_d2h_and_release_device_tensor()

    def wait_d2h_and_release_device_tensor(self) -> None:
        """Lets go of the device memory, behind a wait of the current stream for these copies."""
        if self.stat == "d2h":
            self._group.release_device_storage()

    def swap_to_device(self, stream: Any = None, async_op: bool = False) -> None:
        """Allocates on the current stream and starts the copies back; without async_op also makes
        the current stream wait for them."""
        if self.stat == "host":
            self._group.swap_in()
            if not async_op:
                self.wait_h2d_and_release_cpu_tensor()

    def wait_h2d_and_release_cpu_tensor(self) -> None:
        """Makes the current stream wait for the copies back, then gives the host memory back."""
        if self.stat == "h2d":
            self._group.wait_swap_in()
            self._group.drop_host_copy()


class SwapGroupOfLayers:
    """The layers that swap together: one for each model, and one for each module_tag.

    It is held by its layers' managers and goes with the last of them. Options are those of
    LayerInputs. Not thread-safe, but forward and backward may run on different threads, one at a
    time.
    """

    def __init__(self, *, context: _core.SwapContext | None = None, **options: Any) -> None:
        self.options = options
        self.num_layers = 0
        make_options(options)  # what is wrong is said here, not in the first forward
        self._context = context
        self._engines: dict[torch.device, _core.SwapLayerInputs] = {}

    @property
    def module_tag(self) -> str:
        return self.options.get("module_tag", "layer")

    def add_layer(self) -> int:
        self.num_layers += 1
        return self.num_layers - 1

    def engine(self, device: torch.device) -> _core.SwapLayerInputs:
        """Made when an input is there for the first time: layers are often made elsewhere."""
        engine = self._engines.get(device)
        if engine is None:
            fits = self._context is not None and self._context.device == device
            context = self._context if fits else make_context(device)
            options = make_options({"num_layers": self.num_layers, **self.options})
            engine = self._engines[device] = _core.SwapLayerInputs(context, options)
        return engine

    def begin_microbatch(self, id: int) -> None:
        """Names the pass that follows: see LayerInputs.begin_microbatch."""
        for engine in self._engines.values():
            engine.begin_microbatch(id)

    def prefetch(self, microbatch: int) -> None:
        """Brings back the last input of that pass: see LayerInputs.prefetch."""
        for engine in self._engines.values():
            engine.prefetch(microbatch)

    def stats(self) -> dict[str, int | float]:
        """LayerInputs' figures, those of several devices added."""
        total: dict[str, int | float] = {}
        for engine in self._engines.values():
            for name, value in engine.stats().items():
                total[name] = total.get(name, 0) + value
        return total

    def __deepcopy__(self, memo: dict) -> SwapGroupOfLayers:
        # A copy of a model is another model.
        made = type(self)(context=self._context, **self.options)
        memo[id(self)] = made
        made.num_layers = self.num_layers
        return made

    def __reduce__(self):
        # Contexts are made anew where it is loaded.
        return _restore_group, (self.options, self.num_layers)


def _restore_group(options: dict, num_layers: int) -> SwapGroupOfLayers:
    group = SwapGroupOfLayers(**options)
    group.num_layers = num_layers
    return group


class SwapLayerInputManager:
    """One layer's part of it: what the wrappers call swap_manager.

    group: the layers that it swaps with; without one, a group of its own, so give the same to all
    layers of a model. custom_check_fn: called with each input; False: it stays.
    """

    def __init__(
        self,
        module_tag: str = "default",
        custom_check_fn: Check | None = None,
        prefetch: int | bool = 1,
        *,
        group: SwapGroupOfLayers | None = None,
    ) -> None:
        self.custom_check_fn = custom_check_fn
        self.group = group or SwapGroupOfLayers(module_tag=module_tag, prefetch=int(prefetch))
        self.layer_idx = self.group.add_layer()
        self._swappers: dict[torch.device, _core.LayerSwapper] = {}

    @property
    def module_tag(self) -> str:
        return self.group.module_tag

    @property
    def num_layers(self) -> int:
        return self.group.num_layers

    @property
    def batch_stack(self) -> list[str]:
        """Where this layer's inputs that wait for their backward are, the oldest first."""
        return [state for swapper in self._swappers.values() for state in swapper.states()]

    def _swapper(self, device: torch.device) -> _core.LayerSwapper:
        swapper = self._swappers.get(device)
        if swapper is None:
            swapper = _core.LayerSwapper(self.group.engine(device), self.layer_idx)
            self._swappers[device] = swapper
        return swapper

    def begin_forward(self, hidden_states: torch.Tensor) -> bool:
        """The layer is about to run a forward that will be run again: starts the copy out. False:
        the input stays."""
        if not is_valid_for_swap(hidden_states, self.custom_check_fn):
            return False
        return self._swapper(hidden_states.device).begin_forward(hidden_states)

    def cancel_forward(self, hidden_states: torch.Tensor) -> None:
        """That forward has raised: as if it had not been."""
        self._swapper(hidden_states.device).cancel_forward(hidden_states)

    def end_forward(self, hidden_states: torch.Tensor) -> None:
        """That forward has run: lets go of the input, behind a wait for its own copy."""
        self._swapper(hidden_states.device).end_forward(hidden_states)

    def begin_backward(self, hidden_states: torch.Tensor) -> None:
        """The layer is about to run again, or backward: the current stream waits for the input here
        and the one before it is on its way. Nothing happens when it is not out."""
        swapper = self._swappers.get(hidden_states.device)
        if swapper is not None:
            swapper.begin_backward(hidden_states)
            # What only we hold by now, e.g. of layers inside a recomputed block, holds its graph.
            self.group.engine(hidden_states.device).sweep()

    def end_backward(self) -> None:
        """That is over: the current stream waits for the one before."""
        for swapper in self._swappers.values():
            swapper.end_backward()

    def __deepcopy__(self, memo: dict) -> SwapLayerInputManager:
        made = object.__new__(type(self))
        memo[id(self)] = made
        made.custom_check_fn = self.custom_check_fn
        made.group = copy.deepcopy(self.group, memo)
        made.layer_idx = self.layer_idx
        made._swappers = {}
        return made

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_swappers": {}}
