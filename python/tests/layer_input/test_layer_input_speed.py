"""The published workload of eight layers, in the simulated device's time; and the host's, as a
ratio to torch's own recompute function."""

import importlib
import pathlib
import sys

import pytest

import swapline.sim

BENCHES = pathlib.Path(__file__).parents[3] / "bench" / "python"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCHES))
    module = importlib.import_module("layer_input_bench")
    sys.path.pop(0)
    with swapline.sim.settings():
        yield module


@pytest.fixture(scope="module")
def flops(bench):
    return bench.calibrated_flops()


@pytest.mark.parametrize("way", ["recompute", "reentrant", "non-reentrant"])
def test_steps_are_as_fast_as_the_link_allows_at_the_peak_of_strict(bench, flops, way):
    def measure(share, num_learning, **how):
        return bench.measure(
            flops, share, way, dry_run=True, num_learning=num_learning, num_steps=2, **how
        )

    plain = measure(1.0, 1, swaps=False)
    for share in bench.SHARES:
        learned = measure(share, 5)
        strict = measure(share, 1, max_swapping_out=1)
        assert bench.broken_bounds(share, learned) == []
        assert learned.step_ms <= strict.step_ms * 1.0001
        assert learned.peak_mib <= strict.peak_mib
        assert learned.physical_mib <= strict.physical_mib
        assert strict.stats["peak_resident_inputs"] <= 1
        # 16 or 15.5 MiB without swap, six inputs of half a MiB of them.
        assert learned.peak_mib <= plain.peak_mib - 2.4
        if share < 1:
            assert learned.step_ms <= plain.step_ms * 1.001


def test_late_copies_change_nothing_and_race_nowhere(bench, flops):
    for way in bench.WAYS:
        eager = bench.measure(flops, 2.5, way, dry_run=True, num_steps=1, num_learning=3)
        late = bench.measure(flops, 2.5, way, late_copies=True, num_steps=1, num_learning=3)
        assert late.races == 0
        assert late.step_ms == pytest.approx(eager.step_ms, rel=1e-9)


def test_the_host_spends_little_more_than_in_torchs_function(bench):
    times = bench.host_times(num_rounds=3)
    for way in bench.WAYS:
        torchs = times["reentrant, no swap" if way == "recompute" else f"{way}, no swap"]
        assert times[f"{way}, swap"] <= 1.5 * torchs
