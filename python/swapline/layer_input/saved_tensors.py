"""What autograd holds in place of the tensors that a framework saves for its recompute.

A recompute function of torch's kind saves a layer's input like any other tensor: just before the
layer runs (not reentrant) or just after (reentrant). A saved-tensor hook puts a Packed in its
place. When the layer is about to run, its input is looked for among the Packed of that moment and
moves to the host; unpacking brings it back. A Packed belongs to one saved tensor and holds all that
is needed to give it back, so whatever the search finds or misses, what is given back is right.
"""

from __future__ import annotations

import weakref

import torch

from swapline import _core


class Packed:
    """One saved tensor: itself, or its copy in host memory."""

    __slots__ = ("__weakref__", "input", "is_reentrant", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.version = 0 if tensor.is_inference() else tensor._version
        self.input: _core.SavedInput | None = None
        self.is_reentrant = False

    def swap(self, saved: _core.SavedInput, is_reentrant: bool) -> None:
        self.input = saved
        self.tensor = None
        self.is_reentrant = is_reentrant

    def unpack(self) -> torch.Tensor:
        if self.input is not None:
            return self.input.take()
        tensor = self.tensor
        # Hooks take this check away from autograd.
        if not tensor.is_inference() and tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {list(tensor.shape)} was saved at version "
                f"{self.version} and is at version {tensor._version}"
            )
        return tensor


class Awaited:
    """The input of a layer that runs without grad, and so perhaps for a reentrant recompute
    function, which has not saved it yet."""

    __slots__ = ("layout", "saved", "storage", "version")

    def __init__(self, saved: _core.SavedInput, tensor: torch.Tensor) -> None:
        self.saved = saved
        self.storage = _core.storage_id(tensor)
        self.version = tensor._version
        self.layout = _layout(tensor)

    def matches(self, tensor: torch.Tensor) -> bool:
        return (
            self.storage == _core.storage_id(tensor)
            and self.version == tensor._version
            and self.layout == _layout(tensor)
        )


def _layout(tensor: torch.Tensor) -> tuple:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


class SavedTensors:
    """The Packed of a model's passes: who was saved last, who was taken last."""

    def __init__(self) -> None:
        # What autograd's hooks are, each one object: who is in force is told by identity.
        self.pack_hook = self._pack
        self.unpack_hook = self._unpack
        self._recent: dict[int, weakref.ref[Packed]] = {}
        self._awaited: Awaited | None = None
        self._taken: weakref.ref[Packed] | None = None  # and its layer not run again yet
        self._retained: weakref.ref[Packed] | None = None  # and its graph stays

    def _pack(self, tensor: torch.Tensor) -> Packed:
        packed = Packed(tensor)
        # Subclasses without bytes of their own, and what hooks save while layers run again.
        if type(tensor) is not torch.Tensor or tensor.device.type == "cpu":
            return packed
        awaited = self._awaited
        if awaited is not None and awaited.matches(tensor):
            self._awaited = None
            packed.swap(awaited.saved, is_reentrant=True)
        elif not _core.is_in_backward():
            self._recent[_core.storage_id(tensor)] = weakref.ref(packed)
        return packed

    def _unpack(self, packed: Packed) -> torch.Tensor:
        if packed.input is None:
            return packed.unpack()
        self._put_retained_back(packed)
        tensor = packed.unpack()
        self._taken = weakref.ref(packed)
        if _core.keeps_graph():
            if self._retained is None:
                # The backward's end; there is no public name for it.
                torch.autograd.Variable._execution_engine.queue_callback(self._put_retained_back)
            self._retained = self._taken
        return tensor

    def _put_retained_back(self, packed: Packed | None = None) -> None:
        """Another layer's backward begins, or none does any more: what a graph that stays has taken
        leaves the device again."""
        retained = self._retained() if self._retained is not None else None
        if retained is None or retained is not packed:
            self._retained = None
            if retained is not None:
                retained.input.put_back()

    def find(self, tensor: torch.Tensor) -> Packed | None:
        """What was saved of `tensor` since forget(), if it is on the device yet."""
        found = self._recent.get(_core.storage_id(tensor))
        packed = found() if found is not None else None
        return packed if packed is not None and packed.tensor is not None else None

    def is_someone_else_saving(self) -> bool:
        """A recompute function that is not reentrant has hooks of its own around its layer."""
        top = _core.top_pack_hook()
        return top is not None and top is not self.pack_hook

    def wait_for(self, saved: _core.SavedInput, tensor: torch.Tensor) -> None:
        self._awaited = Awaited(saved, tensor)

    def forget(self) -> None:
        """A layer begins, or a pass is over: what was saved before has nothing to do with it."""
        self._recent.clear()
        self._awaited = None

    def ran_again(self, outputs: list[torch.Tensor]) -> None:
        """A layer has run in backward."""
        taken = self._taken() if self._taken is not None else None
        self._taken = None
        if taken is not None and taken.input is not None:
            taken.input.recomputed(outputs if taken.is_reentrant else [])
