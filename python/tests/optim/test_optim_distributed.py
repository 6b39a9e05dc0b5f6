"""FSDP2, tensor parallelism, distributed checkpoints: few processes that each do many checks."""

import pathlib

import pytest

WORKER = pathlib.Path(__file__).with_name("worker_optim.py")


@pytest.fixture(scope="module")
def run(run_worker):
    """run(folder, world, *jobs)."""
    return lambda folder, world, *jobs: run_worker(WORKER, world, folder, *jobs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What one test's processes write, those of a later one read."""
    return tmp_path_factory.mktemp("distributed")


def test_two_ranks_have_the_bits_of_torch_optim(folder, run):
    run(folder, 2, "bits", "masters", "tensor_parallel", "experts", "refused", "checkpoints")


def test_checkpoints_of_two_ranks_on_one(folder, run):
    run(folder, 1, "reshard", "goes_on")


def test_checkpoints_of_two_ranks_on_four(folder, run):
    run(folder, 4, "reshard")


def test_state_dicts_of_two_ranks_and_what_others_wrote(folder, run):
    run(folder, 2, "state_dicts", "async_saves", "resharded")
