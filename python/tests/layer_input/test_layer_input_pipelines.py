"""The schedules of torch.distributed.pipelining on two processes, which do all checks in one go."""

import pathlib

WORKER = pathlib.Path(__file__).with_name("worker_layer_input.py")
WORLD = 2


def test_every_schedule_has_the_bits_of_a_run_without_swap(tmp_path, run_worker):
    for output in run_worker(WORKER, WORLD, tmp_path):
        assert output.count("swapped ") == 4 * 3 + 3
