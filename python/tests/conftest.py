"""What all tests share: the simulated device, and that no test leaves a race behind."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

import swapline.sim  # noqa: F401 - before the first backward of the process
from swapline import _sim


@pytest.fixture(autouse=True)
def no_races():
    """Every test runs under the race checker; one that provokes a race clears it itself."""
    _sim.clear_races()
    yield
    assert _sim.num_races() == 0, _sim.races()[0]


@pytest.fixture(scope="session")
def run_worker() -> Callable[..., list[str]]:
    """run_worker(program, world, folder, *words): the program in `world` processes, each called
    with its rank, world, folder and the words. What each has printed; fails with what a failed one
    has."""

    def run(program: pathlib.Path, world: int, folder: pathlib.Path, *words: str) -> list[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        processes = [
            subprocess.Popen(
                [sys.executable, str(program), str(rank), str(world), str(folder), *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            outputs = [process.communicate(timeout=240)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
            if process.returncode != 0:
                pytest.fail(f"rank {rank} of {world}, {' '.join(words)}:\n{output[-6000:]}")
        return outputs

    return run
