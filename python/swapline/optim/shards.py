"""Parameters that are DTensors (FSDP2, tensor parallelism): what the engine sees of them.

The engine updates plain tensors. For a DTensor it lists a stand-in, an empty tensor of its own that
is given the local shard and its gradient at each step: FSDP2 may put another local tensor into the
parameter at any time, and does so before the first forward when a shard is padded.
"""

import dataclasses
import sys

import torch
from torch import Tensor

from swapline import _core


def is_dtensor(tensor: Tensor) -> bool:
    # Importing it takes a second, and whoever has a DTensor has done so.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """The shard in a DTensor, any other tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    # Not to_local(): it is autograd's, and several times as slow.
    local = tensor._local_tensor
    return local.wait() if hasattr(local, "wait") else local


def like_param(param: Tensor, local_state: Tensor) -> Tensor:
    """A state of `param`: of a DTensor, a DTensor laid out as it is whose shard is `local_state`.

    No copy is made, and the shard stays where it is: from_local() would move it to the device.
    """
    if not is_dtensor(param):
        return local_state
    spec = param._spec
    meta = spec.tensor_meta
    if meta is not None and meta.dtype != local_state.dtype:
        spec = dataclasses.replace(spec, tensor_meta=meta._replace(dtype=local_state.dtype))
    # Not a public constructor; there is no other that takes a shard as it is.
    return type(param)(local_state, spec, requires_grad=False)


def _local_grad(param: Tensor) -> Tensor | None:
    grad = param.grad
    if grad is None:
        return None
    if not is_dtensor(grad):
        raise RuntimeError(
            f"the gradient of a DTensor parameter of sizes {tuple(param.shape)} is a plain "
            f"{grad.dtype} tensor of sizes {tuple(grad.shape)}: it must be a DTensor too"
        )
    if grad._spec is not param._spec and grad.placements != param.placements:
        # As torch.optim's operators do, e.g. with a partial gradient of a replicated parameter.
        grad = grad.redistribute(param.device_mesh, param.placements)
    return local_part(grad)


class Shards:
    """The stand-ins of an optimizer's DTensors."""

    def __init__(self) -> None:
        self._stand_ins: dict[Tensor, Tensor] = {}

    def listed(self, param: Tensor) -> Tensor:
        """What the engine knows a parameter by."""
        if not is_dtensor(param):
            return param
        if param not in self._stand_ins:
            # detach() makes a tensor object of its own over the same memory.
            stand_in = local_part(param).detach()
            self._stand_ins[param] = stand_in.requires_grad_(param.requires_grad)
        return self._stand_ins[param]

    def forget(self, params: list[Tensor]) -> None:
        for param in params:
            self._stand_ins.pop(param, None)

    def follow_requires_grad(self) -> None:
        for param, stand_in in self._stand_ins.items():
            if stand_in.requires_grad != param.requires_grad:
                stand_in.requires_grad_(param.requires_grad)

    def set(self) -> list[Tensor]:
        """Gives the stand-ins shards and gradients. Returns what release() is to be given."""
        if not self._stand_ins:
            return []
        locals_, grads, changed = [], [], []
        for param in self._stand_ins:
            local = local_part(param)
            grad = _local_grad(param)
            locals_.append(local)
            grads.append(grad)
            if grad is not None:
                changed += (param, local)
        _core.set_shards(list(self._stand_ins.values()), locals_, grads)
        return changed

    def release(self, changed: list[Tensor]) -> None:
        if self._stand_ins:
            _core.release_shards(list(self._stand_ins.values()), changed)


def check_param(param: Tensor, where: str) -> None:
    """Refuses what has no states worth swapping or cannot be updated where it is."""
    if param.device.type in ("cpu", "meta"):
        hint = (
            "move the model to its device before the optimizer is made, or use torch.optim"
            if param.device.type == "cpu"
            else "give it memory (to_empty) before the optimizer is made"
        )
        raise ValueError(f"{where} is on {param.device}: {hint}")
    local = local_part(param)
    if type(local) not in (Tensor, torch.nn.Parameter) and hasattr(local, "__tensor_flatten__"):
        raise TypeError(
            f"{where} is a {type(local).__qualname__}, a tensor subclass that the optimizer does "
            "not know: give it plain tensors or DTensors of them"
        )
