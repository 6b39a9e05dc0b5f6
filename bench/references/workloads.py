"""The two workloads: eight recomputed layers, and AdamW steps of 75, 64 or 816 tensors.

A system is a module of the folder systems/: see systems/__init__.py.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import machine
import swapline.sim
import torch
from torch.nn import functional

# ---- Layer inputs


@dataclass(frozen=True)
class LayerSize:
    num_layers: int = 8
    rows: int = 512
    width: int = 256
    inner: int = 1024
    layer_ms: float = 10.0
    shares: tuple[float, ...] = (0.2, 1.5, 2.5)  # of a layer's forward that one input's copy takes
    steps: int = 3

    def input_bytes(self) -> int:
        return self.rows * self.width * 4


SMALL_LAYERS = LayerSize(num_layers=4, rows=64, width=32, inner=128, shares=(1.5,), steps=2)
WARM_UP = 2  # steps; a system that learns from its first ones says how many it takes


class Layer(torch.nn.Module):
    """x = norm(h); y = h + o(q(x) sigmoid(k(x)) v(x)); y + d(gelu(u(norm(y)))). [rows, width]"""

    def __init__(self, size: LayerSize):
        super().__init__()
        width, inner = size.width, size.inner
        for name, (n_in, n_out) in {
            **dict.fromkeys("qkvo", (width, width)), "u": (width, inner), "d": (inner, width)
        }.items():
            weight = torch.randn(n_out, n_in) * 0.05
            linear = torch.nn.Linear(n_in, n_out, bias=False, device="meta")
            linear.weight = torch.nn.Parameter(weight.to(machine.DEVICE))
            self.add_module(name, linear)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = functional.layer_norm(hidden_states, hidden_states.shape[-1:])
        y = hidden_states + self.o(self.q(x) * torch.sigmoid(self.k(x)) * self.v(x))
        return y + self.d(functional.gelu(self.u(functional.layer_norm(y, y.shape[-1:]))))


@functools.cache
def flops_for(size: LayerSize) -> float:
    """The FLOP/s with which one layer's forward takes size.layer_ms. Its time is a constant and
    what falls with the rate, so that each round gains two digits."""
    flops = 1e11
    for _ in range(8):
        machine.use(dry_run=True, float32_flops=flops)
        layer = Layer(size)
        hidden_states = torch.empty(size.rows, size.width, device=machine.DEVICE)
        with torch.no_grad():
            before = swapline.sim.time_ms()
            layer(hidden_states)
            flops *= (swapline.sim.time_ms() - before) / size.layer_ms
        del layer, hidden_states
    return flops


def use_for_layers(size: LayerSize, flops: float, share: float, late_copies: bool) -> None:
    link = size.input_bytes() / (share * size.layer_ms / 1e3 - 10e-6)
    machine.use(
        float32_flops=flops, h2d_bytes_per_s=link, d2h_bytes_per_s=link, late_copies=late_copies
    )


def run_layers(
    make_step: Callable[..., Callable[[torch.Tensor], None]],
    paths: dict[str, str],
    size: LayerSize,
    warm_up: int,
) -> tuple[machine.Taken, float, list[torch.Tensor]]:
    """What a step takes; races of the first steps, in all; every gradient, of all steps summed."""
    torch.manual_seed(7)
    layers = [Layer(size) for _ in range(size.num_layers)]
    x = torch.randn(size.rows, size.width).to(machine.DEVICE).requires_grad_()
    held = 2 * machine.allocated_bytes()  # everything here gets a gradient
    step = make_step(paths, layers)
    for _ in range(warm_up):
        step(x)
    early_races = swapline.sim.num_races()
    taken = machine.measure(lambda: step(x), size.steps, held, synced=False)
    weights = [weight for layer in layers for weight in layer.parameters()]
    return taken, early_races, machine.on_host([x.grad, *(weight.grad for weight in weights)])


def measure_layers(
    system: ModuleType, plain: ModuleType, paths: dict[str, str], size: LayerSize
) -> Iterator[dict[str, Any]]:
    """A row for each share; gradients are compared with those of `plain`, the same recompute
    without swap."""
    flops = flops_for(size)
    warm_up = getattr(system, "WARM_UP", WARM_UP)
    use_for_layers(size, flops, 1.0, late_copies=False)
    _, _, expected = run_layers(plain.make_step, paths, size, warm_up)
    for share in size.shares:
        equal, late_races = {}, 0.0
        for late_copies in (False, True):
            swapline.sim.clear_races()
            use_for_layers(size, flops, share, late_copies)
            measured, early_races, gradients = run_layers(
                system.make_step, paths, size, warm_up
            )
            equal[late_copies] = machine.same_bits(gradients, expected)
            if late_copies:
                late_races = measured.races
            else:
                taken, races = measured, early_races
            getattr(system, "forget", lambda: None)()
        yield asdict(taken) | {
            "setting": share,
            "early_races": races,
            "late_races": late_races,
            "equal": equal[False],
            "equal_late": equal[True],
        }


# ---- Optimizer


@dataclass(frozen=True)
class OptimizerSize:
    shapes: tuple[tuple[int, ...], ...]
    times: tuple[int, ...] = (1, 4, 16, 64)
    steps: int = 3


def seventy_five_tensors() -> tuple[tuple[int, ...], ...]:
    layer = [(512, 512)] * 4 + [(1376, 512)] * 2 + [(512, 1376), (512,), (512,)]
    return ((32000, 512), *(layer * 8), (512,), (32000, 512))


OPTIMIZER_SIZES = {
    "75": OptimizerSize(seventy_five_tensors()),
    "64": OptimizerSize(((1024, 1024),) * 64),
    "816": OptimizerSize(((30900,),) * 816),
}
SMALL_OPTIMIZER = OptimizerSize(((256, 64), (64, 64), (64,), (256, 64)), times=(4,), steps=2)
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


def make_parameters(size: OptimizerSize) -> list[torch.nn.Parameter]:
    """Fresh, with gradients; the same numbers each time."""
    generator = torch.Generator().manual_seed(11)

    def on_device(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(machine.DEVICE)

    parameters = [torch.nn.Parameter(on_device(shape)) for shape in size.shapes]
    for parameter in parameters:
        parameter.grad = on_device(parameter.shape)
    return parameters


def run_optimizer(
    make_step: Callable[..., Callable[[], None]],
    paths: dict[str, str],
    size: OptimizerSize,
    times: int,
) -> tuple[machine.Taken, machine.Taken, list[torch.Tensor]]:
    """A step's figures with the host waiting after each, and with the host running ahead; the
    parameters after all of them."""
    parameters = make_parameters(size)
    held = machine.allocated_bytes()
    step = make_step(paths, parameters, times)
    for _ in range(2):
        step()
    synced = machine.measure(step, size.steps, held, synced=True)
    running = machine.measure(step, size.steps, held, synced=False)
    return synced, running, machine.on_host(parameters)


def measure_optimizer(
    system: ModuleType, plain: ModuleType, paths: dict[str, str], size: OptimizerSize
) -> Iterator[dict[str, Any]]:
    """A row for each `times`; parameters are compared with those of `plain`, states resident."""
    machine.use()
    _, _, expected = run_optimizer(plain.make_step, paths, size, 1)
    for times in getattr(system, "TIMES", size.times):
        equal = {}
        late_races = 0.0
        for late_copies in (False, True):
            swapline.sim.clear_races()
            machine.use(late_copies=late_copies)
            synced, running, parameters = run_optimizer(system.make_step, paths, size, times)
            equal[late_copies] = machine.same_bits(parameters, expected)
            if late_copies:
                late_races = running.races
            else:
                taken, ahead = synced, running
            del parameters
            getattr(system, "forget", lambda: None)()
        yield asdict(taken) | {
            "setting": times,
            "unsynced_ms": ahead.step_ms,
            "races": max(taken.races, ahead.races),
            "early_races": 0,
            "late_races": late_races,
            "equal": equal[False],
            "equal_late": equal[True],
        }
