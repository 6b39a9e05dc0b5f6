"""Muon with AdamW for the rest, against torch.optim's two."""

import pytest
import torch
from optim_support import DEVICE, assert_same_states, set_grads

import swapline.optim

MATRICES = ((48, 32), (32, 48), (64, 64))
OTHERS = ((100, 16), (16,), ())


def make():
    generator = torch.Generator().manual_seed(3)

    def of(sizes):
        return [torch.randn(s, generator=generator).to(DEVICE).requires_grad_() for s in sizes]

    return of(MATRICES), of(OTHERS)


def groups(matrices, others, **adamw):
    return [
        {"params": others[:1], "use_muon": False, "lr": 2e-3, **adamw},
        {"params": matrices},
        {"params": others[1:], "use_muon": False, **adamw},
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False},
        {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.9, "weight_decay": 0.2, "ns_steps": 3},
    ],
    ids=["plain", "no nesterov", "rms"],
)
def test_bits(options):
    matrices, others = make()
    ours = swapline.optim.Muon(groups(matrices, others), lr=2e-2, **options)
    stock_matrices, stock_others = make()
    muon = torch.optim.Muon(stock_matrices, lr=2e-2, **options)
    adamw = torch.optim.AdamW(
        [{"params": stock_others[:1], "lr": 2e-3}, {"params": stock_others[1:]}], fused=True
    )
    for step in range(20):
        set_grads(matrices + others, step, without={4} if step < 3 else ())
        set_grads(stock_matrices + stock_others, step, without={4} if step < 3 else ())
        ours.step()
        muon.step()
        adamw.step()
    for mine, other, theirs in [(matrices, stock_matrices, muon), (others, stock_others, adamw)]:
        for a, b in zip(mine, other):
            assert torch.equal(a.detach().cpu(), b.detach().cpu())
            assert_same_states(ours.state[a], theirs.state[b])
    assert ours.device_state_bytes() == 0
    assert all(s["momentum_buffer"].device.type == "cpu" for s in map(ours.state.get, matrices))


def test_group_keys_are_those_of_torch_optim():
    matrices, others = make()
    ours = swapline.optim.Muon(groups(matrices, others))
    muon = torch.optim.Muon(make()[0])
    assert set(ours.param_groups[1]) == set(muon.param_groups[0])
    assert set(ours.param_groups[0]) == {
        *("params", "use_muon", "lr", "betas", "eps", "weight_decay"),
        *("amsgrad", "maximize", "decoupled_weight_decay"),
    }
    assert ours.param_groups[2]["weight_decay"] == 1e-2


def test_checkpoints_with_torch_optim_both_ways():
    matrices, _ = make()
    ours = swapline.optim.Muon(matrices, lr=1e-2)
    stock_matrices, _ = make()
    theirs = torch.optim.Muon(stock_matrices, lr=1e-2)
    for step in range(3):
        set_grads(matrices, step)
        ours.step()
    with torch.no_grad():
        for a, b in zip(matrices, stock_matrices):
            b.copy_(a)
    theirs.load_state_dict(ours.state_dict())
    again_matrices, _ = make()
    again = swapline.optim.Muon(again_matrices)
    with torch.no_grad():
        for a, b in zip(matrices, again_matrices):
            b.copy_(a)
    again.load_state_dict(theirs.state_dict())
    assert again.param_groups[0]["lr"] == 1e-2
    for step in range(3, 6):
        for optimizer, params in (
            (ours, matrices),
            (theirs, stock_matrices),
            (again, again_matrices),
        ):
            set_grads(params, step)
            optimizer.step()
    for a, b, c in zip(matrices, stock_matrices, again_matrices):
        assert torch.equal(a.cpu(), b.cpu()) and torch.equal(a.cpu(), c.cpu())


def test_experts_are_updated_each_for_itself():
    generator = torch.Generator().manual_seed(5)
    experts = torch.randn(6, 32, 24, generator=generator)
    stacked = experts.to(DEVICE).requires_grad_()
    single = [e.to(DEVICE).requires_grad_() for e in experts]
    ours = swapline.optim.Muon([stacked])
    theirs = torch.optim.Muon(single)
    for step in range(5):
        set_grads([stacked], step)
        for i, param in enumerate(single):
            param.grad = stacked.grad[i].clone()
        ours.step()
        theirs.step()
    assert torch.equal(stacked.detach().cpu(), torch.stack([p.detach() for p in single]).cpu())


def test_grad_scaler_unscales_itself():
    matrices, others = make()
    ours = swapline.optim.Muon(groups(matrices, others))
    assert not ours._step_supports_amp_scaling
    ours.grad_scale = torch.ones((), device=DEVICE)
    set_grads(matrices + others, 0)
    with pytest.raises(RuntimeError, match="Muon has no grad_scale"):
        ours.step()
    del ours.grad_scale
    ours.step()
    assert len(ours.state) == 6


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ns_steps": 100}, "ns_steps"),
        ({"hybrid_ns": True}, "hybrid_ns"),
        ({"adjust_lr_fn": "other"}, "adjust_lr_fn of group 0 must be None, original"),
        ({"momentum": -1.0}, "momentum"),
    ],
)
def test_refused(change, message):
    matrices, _ = make()
    with pytest.raises(ValueError, match=message):
        swapline.optim.Muon(matrices, **change)


def test_vectors_are_refused():
    _, others = make()
    with pytest.raises(RuntimeError, match=r"\[16\].*Muon updates matrices"):
        swapline.optim.Muon([others[1]])


def test_hybrid_iterations_orthogonalize():
    matrices, _ = make()
    ours = swapline.optim.Muon(matrices, lr=1.0, weight_decay=0.0, ns_steps=10, hybrid_ns=True)
    before = [m.detach().cpu().clone() for m in matrices]
    set_grads(matrices, 0)
    ours.step()
    update = before[2] - matrices[2].detach().cpu()  # square: lr factor 1
    values = torch.linalg.svdvals(update)
    assert 0.9 < values.min() and values.max() < 1.1
