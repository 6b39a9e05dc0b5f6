"""Whatever stream or device the work is on: the user's own compute stream, side streams, a second
device, contexts that come and go, a queue that holds much."""

import contextlib
import gc

import pytest
import torch
from models import WAYS, make_batch, make_model, recomputing, sgd, train_step, values_of
from test_optimizers import SMALL_CHUNKS, make_params, set_grads, small_states  # noqa: F401

from swapline import optim
from swapline.layer_input import LayerInputs


@pytest.mark.parametrize("way", WAYS)
def test_a_compute_stream_of_the_users(device, same_with_swap, way):
    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        device.synchronize()
        with (
            torch.Stream(device.at()),
            recomputing(way, model, is_swapped, device, max_swapping_out=1),
        ):
            made = optim.AdamW if is_swapped else torch.optim.AdamW
            extra = SMALL_CHUNKS if is_swapped else {}
            optimizer = made(model.parameters(), lr=1e-2, foreach=True, **extra)
            while True:
                yield train_step(model, x, optimizer)

    same_with_swap(run)


@pytest.mark.parametrize("way", WAYS)
def test_inputs_made_on_a_side_stream(device, same_with_swap, way):
    """As exchanges between experts make them: the layer runs on another stream, ordered behind."""

    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        side = torch.Stream(device.at())
        with recomputing(way, model, is_swapped, device, max_swapping_out=1):
            inner = model.run

            def run_layer(layer, h):
                compute = torch.accelerator.current_stream(device.at())
                side.wait_stream(compute)
                with side:
                    moved = h * 1
                compute.wait_stream(side)
                out = inner(layer, moved)
                with side:  # what else goes on there takes what is free in its pool
                    torch.full_like(moved, 3.0)
                return out

            model.run = run_layer
            while True:
                step = train_step(model, x, sgd(model))
                # Blocks of the side stream are handed out again behind what compute still reads.
                side.wait_stream(torch.accelerator.current_stream(device.at()))
                yield step

    same_with_swap(run)


@pytest.mark.parametrize("way", WAYS[:3])
def test_micro_batches_on_streams_of_their_own(device, same_with_swap, way):
    def run(is_swapped):
        models = [make_model(device), make_model(device)]
        data = [make_batch(device, seed=seed) for seed in range(2)]
        streams = [torch.Stream(device.at()) for _ in data]
        device.synchronize()
        with contextlib.ExitStack() as swapping:
            for model in models:
                swapping.enter_context(
                    recomputing(way, model, is_swapped, device, max_swapping_out=1)
                )
            while True:
                losses, results = [], []
                for model, x, stream in zip(models, data, streams):
                    with stream:
                        losses.append(model(x).square().mean())
                for model, loss, stream in zip(models, losses, streams):
                    with stream:
                        loss.backward()
                        results += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
                        model.zero_grad()
                for stream in streams:
                    torch.accelerator.current_stream(device.at()).wait_stream(stream)
                yield results

    same_with_swap(run)


@pytest.mark.parametrize("way", WAYS[:3])
def test_the_second_device_while_the_first_is_current(device, same_with_swap, way):
    if device.module.device_count() < 2:
        pytest.skip(f"there is one {device}")

    def run(is_swapped):
        model, x = make_model(device, index=1), make_batch(device, index=1)
        context = device.context(1) if is_swapped else None
        options = {"context": context} if is_swapped else {}
        with recomputing(way, model, is_swapped, device, **options):
            made = optim.AdamW if is_swapped else torch.optim.AdamW
            extra = {**SMALL_CHUNKS, "context": context} if is_swapped else {}
            optimizer = made(model.parameters(), lr=1e-2, foreach=True, **extra)
            while True:
                assert torch.accelerator.current_device_index() == 0
                yield train_step(model, x, optimizer)

    same_with_swap(run)


@pytest.mark.devices("sim", "cuda", why="events do not order across NPUs of one process")
def test_a_model_over_two_devices(device, same_with_swap):
    if device.module.device_count() < 2:
        pytest.skip(f"there is one {device}")

    def run(is_swapped):
        first, second = make_model(device), make_model(device, index=1)
        x = make_batch(device)
        both = [LayerInputs(device.context(i) if is_swapped else None, enabled=is_swapped)
                for i in range(2)]  # fmt: skip
        params = [*first.parameters(), *second.parameters()]
        made = optim.AdamW if is_swapped else torch.optim.AdamW
        extra = SMALL_CHUNKS if is_swapped else {}
        optimizer = made(params, lr=1e-2, foreach=True, **extra)
        while True:
            h = first.embed(x)
            for layer in first.layers:
                h = both[0].recompute(layer, h)
            h = h.to(device.at(1), non_blocking=True)
            for layer in second.layers:
                h = both[1].recompute(layer, h)
            second.head(h).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            yield [param.detach().clone() for param in params]

    same_with_swap(run)


@pytest.mark.parametrize("way", WAYS)
def test_contexts_that_come_and_go(device, same_with_swap, way):
    """Each step with a context of its own, let go while its copies may be under way."""

    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        inner = model.run
        layers = list(model.layers)
        while True:
            with recomputing(way, model, is_swapped, device):
                step = train_step(model, x, sgd(model))
            model.run = inner
            for i, layer in enumerate(layers):
                model.layers[i] = layer
            yield step

    same_with_swap(run, may_wait=True)


def test_optimizers_that_come_and_go(device, same_with_swap):
    def run(is_swapped):
        params = make_params(device)
        made = optim.AdamW if is_swapped else torch.optim.AdamW
        extra = SMALL_CHUNKS if is_swapped else {}
        while True:
            optimizer = made(params, lr=1e-2, foreach=True, **extra)
            for _ in range(2):
                set_grads(params)
                optimizer.step()
            del optimizer
            yield [param.detach().clone() for param in params]

    same_with_swap(run, may_wait=True)


def test_forty_steps_that_nobody_waits_for(device, same_with_swap):
    """The host runs far ahead of the device, with inputs and states in flight all the time."""

    def run(is_swapped):
        model, x = make_model(device), make_batch(device)
        with recomputing("recompute", model, is_swapped, device):
            made = optim.AdamW if is_swapped else torch.optim.AdamW
            extra = SMALL_CHUNKS if is_swapped else {}
            optimizer = made(model.parameters(), lr=1e-3, foreach=True, **extra)
            while True:
                for _ in range(10):
                    loss = train_step(model, x, optimizer)[0]
                yield [loss, *values_of(model)]

    same_with_swap(run)


@pytest.mark.any_schedule
def test_pinned_bytes_are_those_that_were_asked_for(logged):
    """Within one percent and a slab, where the backend's allocator rounds as where it does not.
    The shapes of Llama 3 8B, each side a thirty-second, and the slab in proportion."""
    slab = 1 << 16
    context = logged.context(slab_bytes=slab)
    context.trim()  # what others left in the backend's cache
    before = logged.pinned_bytes()
    layer = [(128, 128)] * 2 + [(32, 128)] * 2 + [(448, 128)] * 3 + [(128,)] * 2
    params = make_params(logged, sizes=[(4008, 128), *layer * 32, (128,), (4008, 128)])
    optimizer = optim.AdamW(params, lr=1e-3, foreach=True, context=context)
    set_grads(params)
    optimizer.step()
    optimizer.drain()
    pinned = logged.pinned_bytes() - before
    wanted = optimizer.stats()["state_bytes"]
    assert wanted == 8 * sum(param.numel() for param in params)
    assert wanted <= pinned <= 1.01 * wanted + slab, f"{pinned} bytes pinned for {wanted}"
    del optimizer
    gc.collect()
    logged.synchronize()
    context.trim()
    assert logged.pinned_bytes() <= before
