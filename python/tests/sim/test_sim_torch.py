"""What people do with torch, on a simulated device against the CPU."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from swapline import sim


@pytest.fixture(params=[False, True], ids=["eager", "late"])
def late_copies(request):
    with sim.settings(late_copies=request.param):
        yield


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def inputs():
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(4))


def train(device, optimizer_class, steps=3, autocast=None, **options):
    model = make_model().to(device)
    optimizer = optimizer_class(model.parameters(), lr=1e-2, **options)
    x = inputs().to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return losses + [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    "optimizer_class, options",
    [
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.Adam, {"foreach": False}),
        (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {"foreach": True}),
        (torch.optim.RMSprop, {"foreach": True, "centered": True}),
    ],
)
def test_optimizers_have_the_bits_of_the_cpu(late_copies, optimizer_class, options):
    on_sim = train("sim", optimizer_class, **options)
    on_cpu = train("cpu", optimizer_class, **options)
    assert all(torch.equal(a, b) for a, b in zip(on_sim, on_cpu, strict=True))


def test_autocast(late_copies):
    assert torch.bfloat16 in torch.sim.get_amp_supported_dtype()
    on_sim = train("sim", torch.optim.SGD, autocast=torch.bfloat16)
    on_cpu = train("cpu", torch.optim.SGD, autocast=torch.bfloat16)
    # Which operators are cast is the accelerators' list here, the CPU's there.
    for a, b in zip(on_sim, on_cpu, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    a = torch.ones(4, 4, device="sim")
    with torch.autocast("sim", torch.bfloat16):
        assert torch.sim.is_autocast_enabled()
        assert torch.sim.get_autocast_dtype() == torch.bfloat16
        assert (a @ a).dtype == torch.bfloat16
        assert a.softmax(0).dtype == torch.float32
    with torch.autocast("sim"):  # torch's default for accelerators
        assert (a @ a).dtype == torch.float16
    with (
        pytest.warns(UserWarning, match="not supported"),
        torch.autocast("sim", torch.float64),
    ):
        assert (a @ a).dtype == torch.float32


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_skips_a_step_with_infinities(fused):
    model = make_model().to("sim")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("sim", init_scale=1024.0)
    x = inputs().to("sim")
    for step in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if step == 1:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        changed = any(not torch.equal(a, p) for a, p in zip(before, model.parameters()))
        assert changed == (step != 1)
        assert scaler.get_scale() == (1024.0 if step == 0 else 512.0)


def test_data_loader_pins():
    data = TensorDataset(torch.arange(64.0).view(32, 2), torch.arange(32))
    for workers in (0, 1):
        loader = DataLoader(data, batch_size=8, pin_memory=True, num_workers=workers)
        seen = []
        for values, labels in loader:
            assert values.is_pinned() and labels.is_pinned()
            seen.append(values.to("sim", non_blocking=True).sum() + labels.to("sim").sum())
        expected = data.tensors[0].sum() + data.tensors[1].sum()
        assert torch.stack(seen).sum().item() == expected.item()
        torch.sim.synchronize()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recompute_replays_dropout(use_reentrant):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            return nn.functional.dropout(self.linear(x).relu(), 0.5)

    torch.manual_seed(2)
    layers = nn.ModuleList(Dropping() for _ in range(3)).to("sim")

    def gradients(recompute):
        torch.manual_seed(11)
        x = inputs().to("sim").requires_grad_()
        h = x
        for layer in layers:
            h = checkpoint(layer, h, use_reentrant=use_reentrant) if recompute else layer(h)
        layers.zero_grad()
        h.square().sum().backward()
        after = torch.rand(4, device="sim")
        return [x.grad, after] + [p.grad for p in layers.parameters()]

    plain = [g.clone() for g in gradients(False)]
    for a, b in zip(gradients(True), plain, strict=True):
        assert torch.equal(a, b)


def test_copies_of_objects(tmp_path):
    model = make_model().to("sim:1")
    view = model[0].weight.detach()[2:5].t()
    for again in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(_saved(model), weights_only=False),
        torch.load(_saved(model), weights_only=False, map_location="sim:2"),
        torch.load(_saved(model), weights_only=False, map_location="cpu"),
        torch.load(_saved(model), weights_only=False, map_location={"sim:1": "sim:0"}),
    ):
        for a, b in zip(again.parameters(), model.parameters()):
            assert torch.equal(a.cpu(), b.cpu())
    assert torch.load(_saved(model), weights_only=False)[0].weight.device.index == 1
    assert torch.load(_saved(view), map_location="sim:2").device.index == 2
    assert torch.equal(copy.deepcopy(view), view)
    state = torch.load(_saved(model.state_dict()), map_location=torch.device("sim", 3))
    assert {value.device.index for value in state.values()} == {3}
    with pytest.raises((RuntimeError, ValueError), match="sim:9|device"):
        torch.load(_saved(view), map_location="sim:9")


def _saved(what):
    buffer = io.BytesIO()
    torch.save(what, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(causal, dtype):
    torch.manual_seed(5)
    q, k, v = (torch.randn(2, 4, 16, 8, dtype=dtype) for _ in range(3))
    seen = {}
    for device in ("sim", "cpu"):
        args = [t.to(device).detach().requires_grad_() for t in (q, k, v)]
        out = nn.functional.scaled_dot_product_attention(*args, is_causal=causal)
        out.float().square().sum().backward()
        seen[device] = [out] + [a.grad for a in args]
    for a, b in zip(seen["sim"], seen["cpu"]):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=2e-2, atol=2e-2)


def test_rotary_embedding_by_complex_views():
    x = torch.randn(2, 8, 4, 6, generator=torch.Generator().manual_seed(1))
    angles = torch.polar(torch.ones(8, 3), torch.arange(24.0).view(8, 3))

    def rotate(x, angles):
        x = x.clone().requires_grad_()
        pairs = torch.view_as_complex(x.reshape(2, 8, 4, 3, 2))
        out = torch.view_as_real(pairs * angles.view(1, 8, 1, 3)).flatten(3)
        conj = torch.view_as_real((pairs.conj() * angles.view(1, 8, 1, 3)).resolve_conj())
        (out.square().sum() + conj.sum()).backward()
        return out.detach().cpu(), x.grad.cpu()

    for a, b in zip(rotate(x.to("sim"), angles.to("sim")), rotate(x, angles)):
        assert torch.equal(a, b)


def test_looking_at_a_tensor():
    x = torch.tensor([[1.0, float("nan")], [3.0, 4.0]], device="sim")
    assert "device='sim:0'" in repr(x) and "nan" in repr(x)
    assert x[1, 1].item() == 4.0 and float(x[0, 0]) == 1.0 and x[1].tolist() == [3.0, 4.0]
    assert bool(x.isnan().any()) and not x[1].isnan().any()
    assert bool((x[1] > 2).all()) and x.argmax().item() == 1
    assert torch.nan_to_num(x).sum().item() == 8.0
    assert x.cpu().numpy().shape == (2, 2)
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()
    assert x.sim(1).device.index == 1


def test_nan_found_in_backward():
    x = torch.zeros(4, device="sim", requires_grad=True)
    with (
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        (x.sqrt() * 0).sum().backward()


def test_several_devices():
    parts = [nn.Linear(16, 16).to(f"sim:{i}") for i in range(3)]
    x = inputs().to("sim:0").requires_grad_()
    h = x
    for index, part in enumerate(parts):
        h = part(h.to(f"sim:{index}"))
    h.sum().backward()
    assert x.grad.device.index == 0
    assert [p.weight.grad.device.index for p in parts] == [0, 1, 2]
    assert sim.memory(2)["allocated_bytes"] > 0
    with pytest.raises(RuntimeError, match="sim:0.*sim:1|one device|same device"):
        torch.ones(2, device="sim:0") + torch.ones(2, device="sim:1")


def test_out_of_memory_is_torchs_error_and_survivable():
    with sim.settings(capacity="32MiB"):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(1 << 24, device="sim")
        for figure in ("tried to allocate 64.00 MiB", "used", "reserved", "capacity 32.00 MiB"):
            assert figure in str(caught.value)
        assert isinstance(caught.value, RuntimeError)
        assert torch.ones(1 << 20, device="sim").sum().item() == 1 << 20


def test_what_has_no_kernel_is_refused_by_name():
    lstm = nn.LSTM(8, 8).to("sim")
    with pytest.raises(RuntimeError, match="_thnn_fused_lstm_cell|not implemented|Could not run"):
        lstm(torch.ones(3, 2, 8, device="sim"))
    # The device goes on.
    assert torch.ones(2, device="sim").sum().item() == 2


def test_hooks_and_functions_run_on_autograds_threads():
    seen = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.sim.current_device())
            return grad * 2

    with torch.sim.device(1):
        x = torch.ones(4, device="sim", requires_grad=True)
        x.register_hook(lambda grad: seen.append(grad.device.index))
        Doubled.apply(x).sum().backward()
    assert seen == [1, 1]
