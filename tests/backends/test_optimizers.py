"""Optimizer states in host memory: the steps of torch.optim, bit for bit, and nobody waits."""

import io
import warnings

import pytest
import torch
from torch import nn

from swapline import optim

SIZES = ((64, 48), (48,), (), (33, 7), (1,), (130, 17), (96, 40))
SMALL_CHUNKS = {"copy_latency_s": 1e-9}


@pytest.fixture(autouse=True)
def small_states():
    with warnings.catch_warnings():
        # Three chunks are more than a share of so few states.
        warnings.filterwarnings("ignore", "swap_optimizer_times .* leaves less device memory")
        yield


def make_params(device, dtype=torch.float32, sizes=SIZES, seed=0, index=0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    return [nn.Parameter(value.to(device.at(index))) for value in values]


def set_grads(params, scale=1.0) -> None:
    """Gradients that depend on the parameters, so that each step's are others."""
    for param in params:
        param.grad = (param.detach() * 0.1 + 0.01) * scale


def training(device, ours, theirs, *, dtype=torch.float32, options=None, groups=None, **both):
    """A run of steps with `theirs`, or with `ours` and the options besides."""
    groups = groups or (lambda params: params)

    def run(is_swapped):
        params = make_params(device, dtype)
        extra = {**SMALL_CHUNKS, **(options or {})} if is_swapped else {}
        optimizer = (ours if is_swapped else theirs)(groups(params), **both, **extra)
        while True:
            set_grads(params)
            optimizer.step()
            optimizer.zero_grad()
            yield [param.detach().clone() for param in params]

    return run


ADAMS = pytest.mark.parametrize(
    "ours, theirs",
    [(optim.AdamW, torch.optim.AdamW), (optim.Adam, torch.optim.Adam)],
    ids=["AdamW", "Adam"],
)


@ADAMS
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_adam(device, same_with_swap, ours, theirs, amsgrad, how):
    if device.kind == "npu" and how == "fused" and (theirs is torch.optim.Adam or amsgrad):
        pytest.skip("torch_npu computes it on the CPU; ours refuses (test_faults.py)")
    same_with_swap(training(device, ours, theirs, amsgrad=amsgrad, lr=1e-2, **{how: True}))


@pytest.mark.parametrize("times", [1, 4, 64])
def test_any_times(device, same_with_swap, times):
    options = {"swap_optimizer_times": times}
    same_with_swap(
        training(device, optim.AdamW, torch.optim.AdamW, options=options, lr=1e-2, foreach=True)
    )


@pytest.mark.parametrize("fraction", [0.5, 0.0])
def test_a_kept_share(device, same_with_swap, fraction):
    options = {"swap_optimizer_fraction": fraction}
    same_with_swap(
        training(device, optim.AdamW, torch.optim.AdamW, options=options, lr=1e-2, foreach=True)
    )


def test_muon(device, same_with_swap):
    def matrices(params):
        return [param for param in params if param.dim() == 2]

    def run(is_swapped):
        params = matrices(make_params(device))
        made = optim.Muon(
            params,
            lr=1e-2,
            placement="swap" if is_swapped else "device",
            **(SMALL_CHUNKS if is_swapped else {}),
        )
        while True:
            set_grads(params)
            made.step()
            made.zero_grad()
            yield [param.detach().clone() for param in params]

    same_with_swap(run)


@pytest.mark.devices(
    "sim",
    "cuda",
    why="no kernel of an NPU's addresses host memory: they are swapped (test_faults.py)",
)
@pytest.mark.parametrize("size", [4096 / 2**30, "all"])
def test_mapped_states(device, same_with_swap, size):
    options = {"virtual_optimizer_size": size}
    same_with_swap(
        training(device, optim.AdamW, torch.optim.AdamW, options=options, lr=1e-2, foreach=True)
    )


def test_several_groups(device, same_with_swap):
    def groups(params):
        return [
            {"params": params[:3], "lr": 1e-2},
            {"params": params[3:5], "weight_decay": 0.5, "amsgrad": True},
            {"params": params[5:], "betas": (0.5, 0.7), "maximize": True},
        ]

    same_with_swap(
        training(device, optim.AdamW, torch.optim.AdamW, groups=groups, lr=1e-2, foreach=True)
    )


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_grad_scaler_with_an_inf(device, same_with_swap, how):
    """The third step has an inf: no parameter changes."""
    if device.kind == "npu" and how == "fused":
        pytest.skip("torch_npu's fused kernel ignores scales: ours is right (test_faults.py)")

    def run(is_swapped):
        params = make_params(device)
        scaler = torch.amp.GradScaler(device.kind, init_scale=2.0**10)
        made = optim.AdamW if is_swapped else torch.optim.AdamW
        extra = SMALL_CHUNKS if is_swapped else {}
        optimizer = made(params, lr=1e-2, **{how: True}, **extra)
        for step in range(99):
            set_grads(params, 2.0**10)
            scaler.scale(torch.ones((), device=device.at()))
            if step == 2:
                params[0].grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update(2.0**10)
            optimizer.zero_grad()
            yield [param.detach().clone() for param in params]

    same_with_swap(run, plain_waits=True)


def test_groups_added_later(device, same_with_swap):
    def run(is_swapped):
        params, more = make_params(device), make_params(device, seed=7)
        made = optim.AdamW if is_swapped else torch.optim.AdamW
        optimizer = made(params, lr=1e-2, foreach=True, **(SMALL_CHUNKS if is_swapped else {}))
        for step in range(99):
            if step == 1:
                optimizer.add_param_group({"params": more, "lr": 1e-3})
                params = params + more
            set_grads(params)
            optimizer.step()
            optimizer.zero_grad()
            yield [param.detach().clone() for param in params]

    same_with_swap(run)


@pytest.mark.parametrize("to_plain", [True, False], ids=["to torch.optim", "back"])
def test_save_and_load(device, same_with_swap, to_plain):
    """States written by one are read by the other, on the way through a file."""

    def run(is_swapped):
        params = make_params(device)
        ours, theirs = (optim.AdamW, SMALL_CHUNKS), (torch.optim.AdamW, {})
        order = (ours, theirs) if to_plain else (theirs, ours)
        first, second = order if is_swapped else (theirs, theirs)
        optimizer = first[0](params, lr=1e-2, foreach=True, **first[1])
        for step in range(99):
            if step == 2:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer = second[0](params, lr=1e-2, foreach=True, **second[1])
                optimizer.load_state_dict(torch.load(file, weights_only=True))
            set_grads(params)
            optimizer.step()
            optimizer.zero_grad()
            yield [param.detach().clone() for param in params]

    same_with_swap(run, num_steps=5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_parameters(device, same_with_swap, dtype):
    same_with_swap(
        training(
            device, optim.AdamW, torch.optim.AdamW, dtype=dtype, lr=1e-2, eps=1e-3, foreach=True
        )
    )


def test_memory_between_steps(device):
    params = make_params(device)
    optimizer = optim.AdamW(params, lr=1e-2, foreach=True, **SMALL_CHUNKS)
    for _ in range(3):
        set_grads(params)
        optimizer.step()
    optimizer.drain()
    assert optimizer.device_state_bytes() == 0 < optimizer.stats()["state_bytes"]


def test_slots_are_free_for_others_with_the_next_call(device):
    """The last ones, when their copies out are done and the optimizer or its context is called."""
    params, context = make_params(device), device.context()
    optimizer = optim.AdamW(params, lr=1e-2, foreach=True, context=context, **SMALL_CHUNKS)
    for last_call in (optimizer.zero_grad, context.settle_done, optimizer.drain):
        set_grads(params)
        optimizer.step()
        device.synchronize()
        assert context.pending_release_bytes > 0
        last_call()
        assert context.pending_release_bytes == 0
