"""Threads of autograd, which nobody sees, hold nothing once somebody has waited for the device,
asked for figures or ended the process."""

import subprocess
import sys
import threading
import time

import pytest
import torch

from swapline import sim


class SlowBackward:
    """A backward on another thread, of which autograd's thread is in the middle."""

    def __init__(self) -> None:
        self.is_over = False
        self._begun = threading.Event()
        self._training = threading.Thread(target=self._train)

    def _train(self) -> None:
        x = torch.ones(4, device="sim", requires_grad=True)
        y = x * 2
        y.register_hook(self._take_long)
        y.sum().backward()

    def _take_long(self, grad: torch.Tensor) -> None:
        self._begun.set()
        time.sleep(0.2)
        self.is_over = True

    def __enter__(self) -> None:
        self._training.start()
        self._begun.wait()

    def __exit__(self, *error: object) -> None:
        self._training.join()


@pytest.mark.parametrize(
    "wait",
    [
        torch.sim.synchronize,
        torch.accelerator.synchronize,
        sim.memory,
        sim.pinned_memory,
        torch.sim.memory_allocated,
        torch.sim.memory_stats,
    ],
    ids=lambda wait: f"{wait.__module__}.{wait.__name__}",
)
def test_waits_for_autograds_thread(wait):
    backward = SlowBackward()
    with backward:
        wait()
        assert backward.is_over


def test_inside_a_backward_nobody_waits_for_itself():
    seen = []
    x = torch.ones(4, device="sim", requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append((torch.sim.synchronize(), sim.memory())))
    y.sum().backward()
    assert len(seen) == 1


ENDS_BESIDE_A_BACKWARD = """
import threading, time, torch, swapline.sim
begun = threading.Event()

def take_long(grad):
    begun.set()
    time.sleep(0.5)

def train():
    y = torch.ones(4, device="sim", requires_grad=True) * 2
    y.register_hook(take_long)
    y.sum().backward()

threading.Thread(target=train, daemon=True).start()
begun.wait()
"""


def test_a_process_ends_beside_a_backward():
    """A thread of autograd that wants Python's lock while Python ends would abort the process."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS_BESIDE_A_BACKWARD],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
