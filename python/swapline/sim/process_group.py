"""The process-group backend "swapline": torch.distributed on simulated devices.

    torch.distributed.init_process_group("cpu:gloo,sim:swapline")

Each process has a simulated machine of its own. Numbers travel by gloo; virtual time travels beside
them, so that a collective starts when its last rank is ready and ends everywhere at one time.
"""

import torch.distributed as dist

from swapline import _sim

NAME = "swapline"


def _make(store, rank: int, size: int, timeout):
    return _sim.make_process_group(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))


def register() -> None:
    """Makes the backend known to torch.distributed, as the one for "sim"; once a process."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, devices=["sim"])
