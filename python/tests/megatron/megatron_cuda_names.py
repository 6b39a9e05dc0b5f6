"""Megatron says "cuda" where it means the accelerator. On another one its users bring a translation
(torch_npu's transfer_to_npu); this one is for the simulated device."""

import contextlib
from collections.abc import Iterator

import megatron.core.tensor_parallel.random as megatron_random
import torch
from torch.overrides import TorchFunctionMode

import swapline.sim  # noqa: F401  (registers torch.sim)


class _OnSim(TorchFunctionMode):
    """device="cuda" is the current simulated device, and a tensor on it a
    torch.cuda.FloatTensor."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = torch.device("sim", torch.sim.current_device())
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.sim.", "torch.cuda.")
        return result


@contextlib.contextmanager
def cuda_means_sim() -> Iterator[None]:
    names = {
        (torch.cuda, "current_device"): lambda: torch.device("sim", torch.sim.current_device()),
        (torch.cuda, "get_rng_state"): torch.sim.get_rng_state,
        (torch.cuda, "manual_seed"): torch.sim.manual_seed,
        (torch.cuda, "synchronize"): torch.sim.synchronize,
        (megatron_random, "_get_cuda_rng_state"): lambda *_, **__: torch.sim.get_rng_state(),
        (megatron_random, "_set_cuda_rng_state"): lambda state, *_, **__: torch.sim.set_rng_state(
            state
        ),
    }
    former = {place: getattr(*place) for place in names}
    for place, value in names.items():
        setattr(*place, value)
    try:
        with _OnSim():
            yield
    finally:
        for place, value in former.items():
            setattr(*place, value)
