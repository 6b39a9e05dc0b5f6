"""A fresh simulated machine for each test, with late copies and the host's accesses watched."""

import warnings

import pytest

import swapline.sim


@pytest.fixture(autouse=True)
def machine(no_races):
    try:
        swapline.sim.configure("tiny", late_copies=True, watch_host_ops=True)
    except RuntimeError:
        # A test before failed, and its traceback holds tensors: go on with its machine.
        if not swapline.sim.options()["late_copies"]:
            raise
    with warnings.catch_warnings():
        # What small models get: three chunks are more than a share of their states.
        warnings.filterwarnings("ignore", "swap_optimizer_times .* leaves less device memory")
        yield
