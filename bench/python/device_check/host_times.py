"""The host's time for a swapped layer and for an optimizer chunk: that of enqueueing alone."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from accelerator import Accelerator
from stack import LAUNCHES, Shape, make_batches, make_stack
from swapline import optim
from swapline.layer_input import SwapLayerInputs
from table import Row

NUM_OPTIMIZER_LAYERS = 2


def rows(accelerator: Accelerator, shape: Shape, times: int) -> Iterator[Row]:
    plain, swapped = (_layer_us(accelerator, swaps, times) for swaps in (False, True))
    name = "a layer, forward and backward, inputs swapped"
    yield Row("host time", name, swapped, plain, "us", "without swap")
    yield Row("host time", "added by swap for each layer", swapped - plain, None, "us")
    plain_us, _ = _optimizer_us(accelerator, shape, torch.optim.AdamW, times)
    resident_us, _ = _optimizer_us(accelerator, shape, optim.AdamW, times, placement="device")
    options = shape.optimizer_options
    swapped_us, num_chunks = _optimizer_us(accelerator, shape, optim.AdamW, times, **options)
    name = f"AdamW.step(), states swapped, {num_chunks} chunks"
    yield Row("host time", name, swapped_us, plain_us, "us", "torch.optim.AdamW(fused=True)")
    yield Row("host time", "a chunk of step()", swapped_us / num_chunks, None, "us")
    added = (swapped_us - resident_us) / num_chunks
    yield Row("host time", "added by swap for each chunk", added, None, "us")


def _median_us(accelerator: Accelerator, work: Callable[[], None], times: int) -> float:
    """Each begun with the device idle; no wait inside."""
    measured = []
    for _ in range(times + 3):
        accelerator.synchronize()
        start = time.perf_counter()
        work()
        measured.append(time.perf_counter() - start)
    return statistics.median(measured[3:]) * 1e6


def _layer_us(accelerator: Accelerator, swaps: bool, times: int) -> float:
    stack = make_stack(accelerator, LAUNCHES, LAUNCHES.num_layers)
    (batch,) = make_batches(accelerator, LAUNCHES, 1)
    with SwapLayerInputs(stack) if swaps else contextlib.nullcontext():
        return _median_us(accelerator, lambda: stack(batch).backward(), times) / LAUNCHES.num_layers


def _optimizer_us(
    accelerator: Accelerator, shape: Shape, made: type, times: int, **options
) -> tuple[float, int]:
    accelerator.clean()
    stack = make_stack(accelerator, shape, NUM_OPTIMIZER_LAYERS)
    for parameter in stack.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = made(stack.parameters(), fused=True, **options)
    taken = _median_us(accelerator, optimizer.step, times)
    num_chunks = optimizer.stats()["num_chunks"] if made is optim.AdamW else 0
    return taken, num_chunks
