"""FSDP2, tensor parallelism, distributed checkpoints: few processes that each do many checks."""

import os
import pathlib
import subprocess
import sys

import pytest

WORKER = pathlib.Path(__file__).with_name("worker_optim.py")


def run(folder, world, *jobs):
    """Processes `world` of the worker; the output of the first that failed in the report."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(world), str(folder), *jobs],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=240)[0])
    finally:
        for process in processes:
            process.kill()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        if process.returncode != 0:
            pytest.fail(f"rank {rank} of {world}, {' '.join(jobs)}:\n{output[-6000:]}")
    return outputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What one test's processes write, those of a later one read."""
    return tmp_path_factory.mktemp("distributed")


def test_two_ranks_have_the_bits_of_torch_optim(folder):
    run(folder, 2, "bits", "masters", "tensor_parallel", "experts", "refused", "checkpoints")


def test_checkpoints_of_two_ranks_on_one(folder):
    run(folder, 1, "reshard", "goes_on")


def test_checkpoints_of_two_ranks_on_four(folder):
    run(folder, 4, "reshard")


def test_state_dicts_of_two_ranks_and_what_others_wrote(folder):
    run(folder, 2, "state_dicts", "async_saves", "resharded")
