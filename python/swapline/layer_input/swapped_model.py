"""Layer-input swap for models that recompute their layers already."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from swapline import _core
from swapline.layer_input.find_layers import Layers, find_layers
from swapline.layer_input.options import Check, make_context, make_options
from swapline.layer_input.saved_tensors import SavedTensors


class SwapLayerInputs:
    """A context manager in which the inputs of a model's recomputed layers are swapped.

        with SwapLayerInputs(model):
            for batch in data:
                model(batch).sum().backward()
                optimizer.step()

    The layers may be recomputed by torch.utils.checkpoint (reentrant or not), by what is built on
    it (checkpoint_wrapper, Hugging Face's gradient_checkpointing_enable), or by any function that
    saves a layer's input for autograd. What is not recomputed is left alone. Results are those
    without, bit for bit.

    model: a module, or several that are trained together (a pipeline's stages on this process).
    layers: the modules whose inputs are swapped, see find_layers; by default the longest list.
    device: of the inputs, or context: a SwapContext, or a list of them; by default each device's
    own, made when an input is there for the first time. Options are those of LayerInputs;
    num_layers is the number of layers found.

    The layer's input is its argument hidden_states, or its first tensor. It has to be given to the
    recompute function as an argument: what is hidden in a closure (functools.partial) is held
    there, and stays. Hooks are on the layers, and saved-tensor hooks in force on this thread, while
    the context is entered; a backward may come after it. Enter it again as often as you like. Not
    thread-safe, but forward and backward may run on different threads, one at a time.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        *,
        layers: Layers = None,
        device: torch.device | str | None = None,
        context: _core.SwapContext | Sequence[_core.SwapContext] | None = None,
        custom_check: Check | None = None,
        **options: Any,
    ) -> None:
        models = [model] if isinstance(model, nn.Module) else list(model)
        self._models = models
        self._layers = find_layers(models, layers)
        options.setdefault("num_layers", len(self._layers) // len(models))
        self._options = make_options(options)
        self._custom_check = custom_check
        self._microbatch: int | None = None
        self._engines: dict[torch.device, _core.LayerInputs] = {}
        if device is not None and context is not None:
            raise ValueError("SwapLayerInputs: give a device or a context, not both")
        given = [make_context(device)] if device is not None else context or []
        for each in [given] if isinstance(given, _core.SwapContext) else given:
            self._engines[each.device] = self._make_engine(each)
        self._is_open = not self._engines  # other devices get contexts of their own
        self._saved = SavedTensors()
        self._handles: list = []
        self._hooks: torch.autograd.graph.saved_tensors_hooks | None = None
        self._last_index = -1
        self._running: list[nn.Module] = []  # models, the outermost first
        self._begins_pass = True
        self._num_runs = 0
        # A layer has begun, and nobody has saved its input yet: its index and that input.
        self._unsaved: tuple[int, torch.Tensor] | None = None
        self._inner_handles: dict[int, list] = {}  # of layers whose own forward recomputes

    def _make_engine(self, context: _core.SwapContext) -> _core.LayerInputs:
        engine = _core.LayerInputs(context, self._options, self._custom_check)
        if self._microbatch is not None:
            engine.begin_microbatch(self._microbatch)
        return engine

    def _engine(self, tensor: torch.Tensor) -> _core.LayerInputs | None:
        engine = self._engines.get(tensor.device)
        if engine is None and self._is_open and tensor.device.type not in ("cpu", "meta"):
            engine = self._engines[tensor.device] = self._make_engine(make_context(tensor.device))
        return engine

    def __enter__(self) -> SwapLayerInputs:
        if self._hooks is not None:
            raise RuntimeError("SwapLayerInputs: it is entered already; one for each nesting")
        for model in self._models:
            self._handles += [
                model.register_forward_pre_hook(self._before_model, prepend=True),
                model.register_forward_hook(self._after_model, always_call=True),
            ]
        for index, layer in enumerate(self._layers):
            before = functools.partial(self._before_layer, index)
            self._handles += [
                layer.register_forward_pre_hook(before, with_kwargs=True),
                layer.register_forward_hook(self._after_layer, always_call=True),
            ]
        self._hooks = torch.autograd.graph.saved_tensors_hooks(
            self._saved.pack_hook, self._saved.unpack_hook
        )
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        self._hooks = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for index in list(self._inner_handles):
            self._stop_looking_inside(index)
        self._saved.forget()
        self._running.clear()
        self._unsaved = None
        if error == (None, None, None):
            self._warn_if_idle()

    def _warn_if_idle(self) -> None:
        if self._num_runs > 0 and not self._engines and self._options.enabled:
            warnings.warn(
                f"SwapLayerInputs: {self._num_runs} runs of layers, and none of their inputs was "
                "saved by a recompute function, so nothing was swapped. Recompute the layers "
                "(torch.utils.checkpoint), give hidden_states as a positional argument, or name "
                "the recomputed modules with layers=...",
                stacklevel=3,
            )

    # Passes.

    def _before_model(self, module: nn.Module, args: tuple) -> None:
        if not _core.is_in_backward():
            if module in self._running:  # an interrupt has ended that one, and no hook told
                del self._running[self._running.index(module) :]
            self._begins_pass = self._begins_pass or not self._running
            self._running.append(module)

    def _after_model(self, module: nn.Module, args: tuple, output: Any) -> None:
        if not _core.is_in_backward():
            if module in self._running:
                del self._running[self._running.index(module) :]
            if not self._running:
                self._saved.forget()

    def _starts_pass(self, index: int) -> bool:
        # Layers that are called one by one, outside their model, start again at a lower one.
        starts = self._begins_pass or (not self._running and index <= self._last_index)
        self._begins_pass = False
        self._last_index = index
        return starts

    # Layers.

    def _before_layer(self, index: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if _core.is_in_backward():
            return
        hidden_states = _hidden_states(args, kwargs)
        if hidden_states is None:
            return
        if torch.is_grad_enabled() or hidden_states.requires_grad:
            self._num_runs += 1
            if not self._swap_saved(index, hidden_states):
                self._unsaved = (index, hidden_states)
                self._look_inside(index)

    def _swap_saved(self, index: int, hidden_states: torch.Tensor) -> bool:
        """Whether a recompute function has saved the input, or will have; then it is swapped."""
        if not torch.is_grad_enabled():
            self._saved.forget()
            engine = self._engine(hidden_states)
            if engine is not None:
                saved = engine.save_for_recompute(hidden_states, self._starts_pass(index))
                self._saved.wait_for(saved, hidden_states)
            return True
        packed = self._saved.find(hidden_states)
        self._saved.forget()
        if packed is None or not self._saved.is_someone_else_saving():
            return False
        engine = self._engine(packed.tensor)
        if engine is not None:
            saved = engine.save_for_recompute(packed.tensor, self._starts_pass(index))
            packed.swap(saved, is_reentrant=False)
        return True

    def _after_layer(self, module: nn.Module, args: tuple, output: Any) -> None:
        # Called with None when the layer's second run was stopped where nothing more is needed.
        if _core.is_in_backward():
            self._saved.ran_again(_tensors(output))
        elif self._unsaved is not None:
            self._stop_looking_inside(self._unsaved[0])
            self._unsaved = None

    # Where a layer's own forward calls the recompute function (transformers), its hooks run outside
    # of that, once. What it consists of runs inside, and again.

    def _look_inside(self, index: int) -> None:
        if index not in self._inner_handles:
            handles = self._inner_handles[index] = []
            for inner in _called_children(self._layers[index]):
                handles.append(inner.register_forward_pre_hook(self._before_inner))
                handles.append(inner.register_forward_hook(self._after_inner))

    def _stop_looking_inside(self, index: int) -> None:
        for handle in self._inner_handles.pop(index, ()):
            handle.remove()

    def _before_inner(self, module: nn.Module, args: tuple) -> None:
        if self._unsaved is None or _core.is_in_backward():
            return
        index, hidden_states = self._unsaved
        is_run_again = torch.is_grad_enabled() or hidden_states.requires_grad
        if is_run_again and self._swap_saved(index, hidden_states):
            self._unsaved = None

    def _after_inner(self, module: nn.Module, args: tuple, output: Any) -> None:
        if _core.is_in_backward():
            self._saved.ran_again(_tensors(output))

    # Hints, as LayerInputs' own.

    def begin_microbatch(self, id: int) -> None:
        """Names the pass that follows: see LayerInputs.begin_microbatch."""
        self._microbatch = id
        for engine in self._engines.values():
            engine.begin_microbatch(id)

    def prefetch(self, microbatch: int) -> None:
        """Brings back the last input of that pass: see LayerInputs.prefetch."""
        for engine in self._engines.values():
            engine.prefetch(microbatch)

    @property
    def layers(self) -> list[nn.Module]:
        return list(self._layers)

    def stats(self) -> dict[str, int | float]:
        """LayerInputs' figures; of several devices the sums, and of peaks the highest."""
        nothing_yet = _core.LayerInputs(None, make_options({"enabled": False}), None)
        total: dict[str, int | float] = nothing_yet.stats()
        for engine in self._engines.values():
            for name, value in engine.stats().items():
                former = total.get(name, 0)
                total[name] = max(former, value) if name.startswith("peak") else former + value
        return total

    def reset_stats(self) -> None:
        for engine in self._engines.values():
            engine.reset_stats()


def _called_children(layer: nn.Module) -> list[nn.Module]:
    """The modules that a layer's forward calls itself; lists of modules are not called."""
    called = []
    for child in layer.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            called += _called_children(child)
        else:
            called.append(child)
    return called


def _hidden_states(args: tuple, kwargs: dict) -> torch.Tensor | None:
    found = kwargs.get("hidden_states")
    if isinstance(found, torch.Tensor):
        return found
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value
    return None


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output
    if isinstance(values, (tuple, list)) or isinstance(output, dict):
        return [value for value in values if isinstance(value, torch.Tensor)]
    return []
