"""Training steps without and with swap: time, peak memory and bits."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import sys
from collections.abc import Iterator

import torch

import swapline
from accelerator import MIB, Accelerator
from stack import Shape, Stack, layers_that_fit, make_batches, make_stack
from swapline import optim
from swapline.layer_input import SwapLayerInputs
from table import Row

PLAIN = "without swap"


@dataclasses.dataclass(frozen=True)
class Plan:
    shape: Shape
    num_layers: int
    num_microbatches: int
    num_warm_steps: int
    num_steps: int
    max_swapping_out: int | str
    times: int  # swap_optimizer_times

    @property
    def parameter_bytes(self) -> int:
        return self.num_layers * self.shape.layer_params * self.shape.dtype.itemsize


@dataclasses.dataclass
class Run:
    step_ms: float
    allocated: int
    reserved: int
    losses: torch.Tensor
    parameters: list[torch.Tensor]  # on the host; those of the plain run only
    num_different: int = 0  # parameters beside the plain run's
    is_swapped: tuple[bool, bool] = (False, False)
    state_bytes: int = 0  # that were swapped
    in_step_bytes: int = 0  # the most that the optimizer holds on the device


def rows(accelerator: Accelerator, plan: Plan) -> Iterator[Row]:
    """Rows come after each run, so that what ends early has shown something."""
    plain, plan = _fitting_run(accelerator, plan)
    name = f"{PLAIN}, {plan.num_layers} layers"
    yield Row("step", name, plain.step_ms, None, "ms")
    yield Row("peak allocated", name, plain.allocated / MIB, None, "MiB")
    yield Row("peak reserved", name, plain.reserved / MIB, None, "MiB")
    context = swapline.SwapContext(accelerator.device)  # of all, so that memory is pinned once
    for name, inputs, states in (
        ("both swapped", True, True),
        ("layer inputs swapped", True, False),
        ("optimizer states swapped", False, True),
        ("without swap, once more", False, False),
    ):
        _say(f"steps: {name}")
        try:
            run = _run(accelerator, plan, context, inputs, states, plain)
        except torch.OutOfMemoryError:
            yield Row("step", name, verdict="out of memory", is_met=False)
            continue
        yield from _rows_of(name, run, plain, plan)


def _rows_of(name: str, run: Run, plain: Run, plan: Plan) -> Iterator[Row]:
    is_swapped = any(run.is_swapped)
    yield Row("step", name, run.step_ms, plain.step_ms, "ms", PLAIN)
    for part, ours, theirs in (
        ("peak allocated", run.allocated, plain.allocated),
        ("peak reserved", run.reserved, plain.reserved),
    ):
        is_met = ours < theirs if is_swapped and part == "peak allocated" else None
        yield Row(part, name, ours / MIB, theirs / MIB, "MiB", PLAIN, is_met=is_met)
    if is_swapped:
        predicted = predicted_peak(run, plain, plan) / MIB
        yield Row("predicted peak", name, run.allocated / MIB, predicted, "MiB", "predicted")
    same_losses = torch.equal(run.losses, plain.losses)
    count = len(plain.parameters)
    differ = "" if same_losses else "losses differ, "
    verdict = f"{differ}{run.num_different} of {count} parameters differ"
    is_equal = same_losses and run.num_different == 0
    yield Row(
        "bits of steps",
        name,
        reference_name=f"{PLAIN}: {len(plain.losses)} losses, {count} parameters",
        verdict="equal" if is_equal else verdict,
        is_met=is_equal if is_swapped else None,
    )


def predicted_peak(run: Run, plain: Run, plan: Plan) -> float:
    """From the plain run's. Without swap every input is there when the last layer's backward runs;
    with it that layer's own and one more. Without swap states are always there; with it they never
    are, but for the chunks in step(), when there are no activations."""
    inputs, states = run.is_swapped
    num_inputs = plan.num_layers - 2 if inputs else 0
    in_backward = plain.allocated - run.state_bytes - num_inputs * plan.shape.input_bytes
    batch_bytes = plan.num_microbatches * plan.shape.input_bytes
    in_step = 2 * plan.parameter_bytes + batch_bytes + run.in_step_bytes
    return max(in_backward, in_step) if states else in_backward


def _fitting_run(accelerator: Accelerator, plan: Plan) -> tuple[Run, Plan]:
    """Without swap; with fewer layers where they did not fit after all."""
    num_layers = plan.num_layers
    if num_layers == 0:
        num_layers = layers_that_fit(accelerator, plan.shape, plan.num_microbatches)
    while True:
        plan = dataclasses.replace(plan, num_layers=num_layers)
        _say(f"steps: {PLAIN}, {num_layers} layers")
        try:
            return _run(accelerator, plan, None, False, False, None), plan
        except torch.OutOfMemoryError:
            if num_layers <= 4:
                raise
        num_layers = max(4, num_layers * 4 // 5)


def _run(
    accelerator: Accelerator,
    plan: Plan,
    context: swapline.SwapContext | None,
    swaps_inputs: bool,
    swaps_states: bool,
    plain: Run | None,
) -> Run:
    accelerator.clean()
    stack = make_stack(accelerator, plan.shape, plan.num_layers)
    batches = make_batches(accelerator, plan.shape, plan.num_microbatches)
    if swaps_states:
        options = {"swap_optimizer_times": plan.times, **plan.shape.optimizer_options}
        optimizer = optim.AdamW(stack.parameters(), fused=True, context=context, **options)
    else:
        optimizer = torch.optim.AdamW(stack.parameters(), fused=True)
    swapping = contextlib.nullcontext()
    if swaps_inputs:
        options = {"max_swapping_out": plan.max_swapping_out}
        swapping = SwapLayerInputs(stack, context=context, **options)
    losses: list[torch.Tensor] = []
    with swapping:
        for _ in range(plan.num_warm_steps):
            losses += _step(stack, batches, optimizer)
        accelerator.synchronize()
        accelerator.forget_peak()
        # Nobody waits between steps: what a step leaves to be copied is time of the next.
        marks = [accelerator.mark()]
        for _ in range(plan.num_steps):
            losses += _step(stack, batches, optimizer)
            marks.append(accelerator.mark())
        accelerator.synchronize()
    allocated, reserved = accelerator.peak_bytes()
    made = Run(
        statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)),
        allocated,
        reserved,
        torch.stack(losses).cpu(),
        [],
        is_swapped=(swaps_inputs, swaps_states),
    )
    if swaps_states:
        stats = optimizer.stats()
        made.state_bytes = stats["state_bytes"] - stats["kept_bytes"]
        made.in_step_bytes = stats["arena_bytes"] + stats["scratch_bytes"]
    if plain is None:
        made.parameters = [parameter.detach().cpu() for parameter in stack.parameters()]
    else:
        made.num_different = sum(
            not torch.equal(parameter.detach(), expected.to(accelerator.device))
            for parameter, expected in zip(stack.parameters(), plain.parameters)
        )
    return made


def _step(stack: Stack, batches: list, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    losses = []
    for batch in batches:
        loss = stack(batch) / len(batches)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    return losses


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
