"""The schedules of torch.distributed.pipelining on two processes, which do all checks in one go."""

import os
import pathlib
import subprocess
import sys

import pytest

WORKER = pathlib.Path(__file__).with_name("worker_layer_input.py")
WORLD = 2


def test_every_schedule_has_the_bits_of_a_run_without_swap(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(WORLD), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=240)[0])
    finally:
        for process in processes:
            process.kill()
    for rank, (process, output) in enumerate(zip(processes, outputs)):
        if process.returncode != 0:
            pytest.fail(f"rank {rank}:\n{output[-6000:]}")
        assert output.count("swapped ") == 4 * 3 + 3
