"""Whether the device's fused AdamW makes the same bits of a tensor that is cut in pieces."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import torch
from torch import nn

from accelerator import Accelerator
from swapline import optim
from table import Row

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NUM_STEPS = 3
WHOLE = "one tensor, torch.optim.AdamW(fused=True)"


def rows(accelerator: Accelerator, num_elements: int) -> Iterator[Row]:
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        device = accelerator.device
        torch.manual_seed(2)
        values = torch.randn(num_elements, device=device).to(dtype)
        grads = [torch.randn(num_elements, device=device).to(dtype) for _ in range(NUM_STEPS)]
        try:
            whole = _torch_steps(values, grads, [0, num_elements])
        except (RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0][:60]
            yield Row("bits of AdamW", f"{name}: no fused kernel", verdict=reason)
            continue
        for cut, offsets in (
            ("cut at multiples of 64", _offsets(num_elements, 64)),
            ("cut at odd offsets", _offsets(num_elements, 1)),
        ):
            verdict = _verdict(_torch_steps(values, grads, offsets), whole)
            yield Row("bits of AdamW", f"{name}: {cut}", verdict=verdict, reference_name=WHOLE)
        got, num_chunks = _swapped_steps(values, grads)
        verdict = _verdict(got, whole)
        yield Row(
            "bits of AdamW",
            f"{name}: swapped, {num_chunks} chunks",
            verdict=verdict,
            reference_name=WHOLE,
            is_met=verdict == "equal",
        )


def _offsets(num_elements: int, unit: int) -> list[int]:
    """Pieces of one element and of many, at offsets that are odd multiples of `unit`."""
    cuts = [unit * each for each in (1, 3, 17, 1001, 4097, 65537, 262145)]
    return [0, *(cut for cut in cuts if cut < num_elements), num_elements]


def _torch_steps(values: torch.Tensor, grads: list, offsets: list[int]) -> torch.Tensor:
    """The parameters after steps over pieces, each a parameter of its own; their states begin where
    the allocator says, as those in a chunk do."""
    held = values.clone()
    pieces = [slice(a, b) for a, b in itertools.pairwise(offsets)]
    params = [nn.Parameter(held[piece]) for piece in pieces]
    optimizer = torch.optim.AdamW(params, lr=1e-2, eps=1e-3, fused=True)
    for grad in grads:
        for param, piece in zip(params, pieces):
            param.grad = grad[piece]
        optimizer.step()
    return torch.cat([param.detach() for param in params])


def _swapped_steps(values: torch.Tensor, grads: list) -> tuple[torch.Tensor, int]:
    param = nn.Parameter(values.clone())
    with warnings.catch_warnings():
        # Three chunks are more than a share of so few states.
        warnings.filterwarnings("ignore", "swap_optimizer_times .* leaves less device memory")
        options = {"swap_optimizer_times": 64, "copy_latency_s": 1e-9}
        optimizer = optim.AdamW([param], lr=1e-2, eps=1e-3, fused=True, **options)
        for grad in grads:
            param.grad = grad
            optimizer.step()
    optimizer.drain()
    return param.detach(), optimizer.stats()["num_chunks"]


def _verdict(got: torch.Tensor, expected: torch.Tensor) -> str:
    if torch.equal(got, expected):
        return "equal"
    return f"{int((got != expected).sum())} of {got.numel()} differ"
