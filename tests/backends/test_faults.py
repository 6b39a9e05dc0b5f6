"""What went wrong on real backends while everything passed on the simulated device."""

import os
import pathlib
import resource
import subprocess
import sys

import pytest
import torch
from models import Layer, make_batch, make_model, recomputing, sgd, train_step
from test_optimizers import SMALL_CHUNKS, make_params, set_grads, small_states  # noqa: F401
from test_wrappers import Stack, make_layers

from swapline import SwapContext, optim
from swapline.errors import HostMemoryError

HERE = pathlib.Path(__file__).resolve().parent

on_npu = pytest.mark.devices("npu", why="a fault of torch_npu's ways")
on_cuda = pytest.mark.devices("cuda", why="a fault of CUDA torch's ways")


def in_a_process(program: str, *, limit=None, **environment: str) -> subprocess.CompletedProcess:
    def set_limit():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))

    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        preexec_fn=set_limit,
    )


# Storages of the backend's own kind.


@on_npu
@pytest.mark.parametrize("way", ["recompute", "reentrant", "non-reentrant"])
def test_storages_stay_those_of_the_backend(device, same_with_swap, way):
    """torch_npu casts every storage to its own kind and reads its description."""
    import torch_npu

    class Asks(Layer):
        def forward(self, hidden_states):
            sizes.append(torch.ops.npu.get_storage_size(hidden_states))
            formats.append(torch_npu.get_npu_format(hidden_states))
            return super().forward(hidden_states)

    sizes, formats = [], []

    def run(is_swapped):
        model, x = make_model(device, layer=Asks), make_batch(device)
        with recomputing(way, model, is_swapped, device):
            while True:
                yield train_step(model, x, sgd(model))

    same_with_swap(run)
    assert len(set(sizes)) == 1 and len(set(formats)) == 1


@on_npu
def test_tensors_of_an_internal_format_are_refused_by_name(device):
    import torch_npu

    torch_npu.npu.config.allow_internal_format = True
    try:
        fractal = torch_npu.empty_with_format(
            (32, 32), dtype=torch.float32, device=device.at(), acl_format=29
        )
        assert torch_npu.get_npu_format(fractal) == 29
        param = torch.nn.Parameter(fractal)
        param.grad = torch.ones(32, 32, device=device.at())
        with pytest.raises(RuntimeError, match="FRACTAL_NZ"):
            optim.AdamW([param], context=device.context())
    finally:
        torch_npu.npu.config.allow_internal_format = False


# Who is asked what a device can do.


@on_npu
@pytest.mark.any_schedule
@pytest.mark.parametrize(
    "versions", [("8.0.0", "25.2.0"), ("8.5.0", "25.2.0"), ("8.0.0", "25.5.0")]
)
def test_pinned_memory_is_seen_by_old_drivers_too(device, versions):
    """They know a pinned tensor by its storage's beginning. The waits are counted there."""
    tests = [HERE / "test_layer_inputs.py", HERE / "test_optimizers.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "--device", "npu"]
        + ["-k", "late-copies and (test_training or foreach)"],
        env={
            **os.environ,
            "HARNESS_CANN_VERSION": versions[0],
            "HARNESS_DRIVER_VERSION": versions[1],
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]


@on_npu
def test_a_fused_kernel_that_ignores_the_scale_gets_unscaled_gradients(device):
    def train(make, scaler, step_of):
        params = make_params(device)
        optimizer = make(params)
        for step in range(4):
            set_grads(params, 2.0**10)
            if step == 2:
                params[0].grad[0, 0] = float("inf")
            step_of(optimizer, params, scaler)
            optimizer.zero_grad()
        return [param.detach().cpu() for param in params]

    def scaled(optimizer, params, scaler):
        scaler.scale(torch.ones((), device=device.at()))
        scaler.step(optimizer)
        scaler.update(2.0**10)

    def by_hand(optimizer, params, scaler):
        for param in params:
            param.grad.mul_(2.0**-10)
        if not any(param.grad.isinf().any() for param in params):
            optimizer.step()

    def ours(params):
        return optim.AdamW(params, lr=1e-2, fused=True, **SMALL_CHUNKS)

    def theirs(params):
        return torch.optim.AdamW(params, lr=1e-2, fused=True)

    got = train(ours, torch.amp.GradScaler("npu", init_scale=2.0**10), scaled)
    expected = train(theirs, None, by_hand)
    for one, other in zip(got, expected):
        assert torch.isfinite(one).all() and torch.equal(one, other)


@on_npu
def test_kernels_that_run_on_the_cpu_are_not_taken_for_the_devices(logged):
    """torch_npu's _fused_adam_ and its overload for a learning rate in a tensor are the CPU's."""
    params = make_params(logged)
    optimizer = optim.Adam(params, lr=1e-2, **SMALL_CHUNKS)  # the kernel is chosen for the device
    for step in range(3):
        set_grads(params)
        if step == 2:
            logged.clear()
        optimizer.step()
    assert not any(logged.slow_calls().values())
    with pytest.raises((ValueError, RuntimeError), match="fused"):
        other = optim.Adam(make_params(logged), lr=1e-2, fused=True)
        other.step()


@on_npu
@pytest.mark.any_schedule
def test_kernels_that_cannot_address_host_memory(device):
    """Said in words, and the states are swapped; nothing is called mapped that is not."""
    params = make_params(device)
    set_grads(params)
    with pytest.warns(UserWarning, match="kernels of npu:0 cannot address host memory"):
        optimizer = optim.AdamW(params, lr=1e-2, virtual_optimizer_size="all", **SMALL_CHUNKS)
    optimizer.step()
    assert optimizer.stats()["mapped_bytes"] == 0 < optimizer.stats()["num_copies_in"]


@pytest.mark.any_schedule
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises((ValueError, RuntimeError), match=rf"{device.kind}:77") as caught:
        SwapContext(f"{device.kind}:77")
    assert "INTERNAL ASSERT" not in str(caught.value)


@on_npu
@pytest.mark.any_schedule
def test_the_simulator_beside_torch_npu_is_an_error_that_names_the_way_out(device):
    done = in_a_process("import torch, torch_npu, swapline.sim")
    assert done.returncode == 1, done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr


# Pinned memory.


@on_cuda
@pytest.mark.any_schedule
def test_a_driver_that_pins_by_itself_is_not_bound_by_the_process_limit(device):
    program = f"""
import torch
from device import make_device
device = make_device({device.kind!r})
from swapline import SwapContext, optim
param = torch.nn.Parameter(torch.ones(1 << 22, device=device.at()))
optimizer = optim.AdamW([param], lr=1e-3, foreach=True, context=SwapContext(device.at()))
param.grad = torch.ones_like(param)
optimizer.step()
optimizer.drain()
print("pinned", device.pinned_bytes() >> 20)
"""
    done = in_a_process(program, limit=64 << 10)
    assert done.returncode == 0, done.stderr
    assert "pinned" in done.stdout


def test_a_slab_that_the_driver_refuses_is_asked_for_again_smaller(logged):
    context = logged.context(slab_bytes=1 << 24)
    context.trim()
    params = make_params(logged)
    with logged.failing("pinned-allocation"):
        optimizer = optim.AdamW(params, lr=1e-2, foreach=True, context=context, **SMALL_CHUNKS)
        set_grads(params)
        optimizer.step()
        optimizer.drain()
    assert context.host_stats()["pinned_bytes"] < 1 << 24


def test_no_pinned_memory_at_all_is_our_error(logged):
    context = logged.context(slab_bytes=1 << 20)
    context.trim()
    if logged.kind == "sim":
        pytest.skip("one failure after the other: only the fake runtimes have a capacity")
    logged.fake.set_capacity(pinned_bytes=0)
    try:
        with pytest.raises(HostMemoryError, match="refused to pin"):
            optim.AdamW(make_params(logged), lr=1e-2, foreach=True, context=context)
    finally:
        logged.fake.set_capacity(pinned_bytes=8 << 30)


# Copies and events.


def test_no_prefetch_is_lost_when_copies_out_are_done_early(device):
    layers = make_layers(device, True)
    model, x = Stack(layers), make_batch(device)
    optimizer = sgd(model)
    for _ in range(6):
        loss = model(x).square().mean()
        device.synchronize()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = layers[0].swap_manager.group.stats()
    assert stats["num_prefetch_misses"] == 0 and stats["num_swapped_in"] > 0


def test_a_chunk_costs_few_events(logged):
    """Loads and stores need one each, the update one, and a slot's allocation one."""
    params = make_params(logged, sizes=[(64, 1024)])
    optimizer = optim.AdamW(
        params, lr=1e-2, foreach=True, swap_optimizer_times=1, context=logged.context(),
        link_bytes_per_s=1e9, copy_latency_s=3e-5,
    )  # fmt: skip
    for step in range(3):
        set_grads(params)
        if step == 2:
            logged.clear()
        optimizer.step()
    assert logged.count("record") <= 4 * optimizer.stats()["num_chunks"]


@pytest.mark.any_schedule
def test_a_lost_device_is_the_users_error_and_no_abort(logged):
    if logged.kind == "sim":
        pytest.skip("tests/swap has it for the simulated device")
    program = f"""
import torch
from device import make_device
device = make_device({logged.kind!r})
device.use("late-copies")
from models import *
model, x = make_model(device), make_batch(device)
try:
    with recomputing("recompute", model, True, device):
        for step in range(3):
            loss = model(x).sum()
            if step == 2:
                device.fake.break_device()
            loss.backward()
except RuntimeError as error:
    print("the user's:", str(error).splitlines()[0], flush=True)
import gc, os
if device.kind == "npu":
    os._exit(0)  # torch_npu's allocator aborts where it frees a block of a failed device
del model, loss
gc.collect()
print("still here", flush=True)
os._exit(0)  # so does the vendor's library at the process's end
"""
    done = in_a_process(program)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "the user's:" in done.stdout
    assert logged.kind == "npu" or "still here" in done.stdout
