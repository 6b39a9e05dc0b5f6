"""Time and device memory of a step through Python, in the simulated device's own measure. The bench
prints the same figures, with numbers computed and late copies."""

import importlib.util
import pathlib

import pytest

import swapline.sim

BENCH = pathlib.Path(__file__).parents[3] / "bench" / "python" / "optim_bench.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("optim_bench", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What bench/optimizer_bench, the same run in C++, prints.
@pytest.mark.parametrize(
    "times, arena_mib, step_ms, held_mib",
    [(1, 0, 20.08, 24.83), (4, 0, 20.08, 24.83), (16, 28, 20.08, 24.83), (64, 7, 22.59, 6.92)],
)
def test_a_step_costs_what_it_costs_in_cpp(bench, times, arena_mib, step_ms, held_mib):
    swapline.sim.configure("trial", dry_run=True)
    result = bench.run_swapped(bench.seventy_five_sizes(), times, arena_mib)
    assert result["step_ms"] == pytest.approx(step_ms, rel=0.01)
    assert result["held_mib"] == pytest.approx(held_mib, rel=0.01)
    assert result["step_ms"] <= {64: 23.5}.get(times, 20.8)
    assert result["held_mib"] <= result["state_mib"] / times + 512 / 2**20
    assert result["step_ms"] <= 1.05 * result["limit_ms"]
    assert result["unsynced_ms"] <= result["step_ms"]
    assert result["races"] == 0


def test_prefetch_hides_the_fill(bench):
    took = []
    for prefetches in (False, True):
        swapline.sim.configure("trial", dry_run=True)
        took.append(step_after_other_work(bench, prefetches))
    assert took[0] - took[1] > 0.2


def step_after_other_work(bench, prefetches):
    """Ms from step() to its end, when prefetch() had a ms before it."""
    optimizer = bench.AdamW(bench.make_params(bench.seventy_five_sizes()))
    optimizer.step()
    optimizer.drain()
    if prefetches:
        optimizer.prefetch()
    swapline.sim.advance_host_ms(1.0)
    start = swapline.sim.time_ms()
    optimizer.step()
    optimizer.drain()
    return swapline.sim.time_ms() - start
