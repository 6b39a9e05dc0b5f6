"""Parameters of every awkward shape, their gradients, and comparison with torch.optim's."""

import torch
from torch import Tensor

import swapline.sim

DEVICE = torch.device("sim", 0)
SIZES = ((64, 48), (48,), (), (0, 5), (33, 7), (1,), (130, 17))


def make_params(dtype=torch.float32, device=DEVICE, sizes=SIZES, transposed=True, seed=0):
    """The same values at each call. The last one is laid out column by column."""
    generator = torch.Generator().manual_seed(seed)
    params = [torch.randn(size, generator=generator).to(dtype).to(device) for size in sizes]
    if transposed:
        params.append(torch.randn(40, 24, generator=generator).to(dtype).to(device).t())
    return [param.requires_grad_() for param in params]


def set_grads(params, step, without=()):
    """Other gradients at each step, laid out as autograd does; none for the parameters numbered in
    `without`."""
    generator = torch.Generator().manual_seed(1000 + step)
    for i, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        laid_out = torch.empty_like(param.detach())
        laid_out.copy_(grad)
        param.grad = None if i in without else laid_out


def train(optimizer, params, num_steps, first=0, without=lambda step: ()):
    for step in range(first, first + num_steps):
        set_grads(params, step, without(step))
        optimizer.step()
        optimizer.zero_grad()


def now_and_then(step):
    """Parameter 1 has a gradient in every third step, parameter 2 from the fifth on."""
    return {1} if step % 3 else set() | ({2} if step < 5 else set())


def assert_same(ours, theirs, our_params, their_params):
    """Parameters and every state, bit for bit."""
    for i, (a, b) in enumerate(zip(our_params, their_params, strict=True)):
        assert torch.equal(a.detach().cpu(), b.detach().cpu()), f"parameter {i}"
        assert_same_states(ours.state.get(a, {}), theirs.state.get(b, {}), f"parameter {i}")


def assert_same_states(ours, theirs, where=""):
    assert list(ours) == list(theirs), where
    for name, value in theirs.items():
        if isinstance(value, Tensor):
            assert ours[name].shape == value.shape, (where, name)
            assert torch.equal(ours[name].cpu(), value.cpu()), (where, name)


def copies():
    counters = swapline.sim.counters()
    return counters["num_copies_in"] + counters["num_copies_out"]
