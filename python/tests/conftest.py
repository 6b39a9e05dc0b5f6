"""What all tests share: the simulated device, and that no test leaves a race behind."""

import pytest

import swapline.sim  # noqa: F401 - before the first backward of the process
from swapline import _sim


@pytest.fixture(autouse=True)
def no_races():
    """Every test runs under the race checker; one that provokes a race clears it itself."""
    _sim.clear_races()
    yield
    assert _sim.num_races() == 0, _sim.races()[0]
