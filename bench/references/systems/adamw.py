"""torch.optim.AdamW, fused, states resident."""

import torch
from workloads import SETTINGS

from systems import OPTIMIZER

NAME = "no swap (torch.optim.AdamW)"
WORKLOAD = OPTIMIZER
TIMES = (1,)


def missing(paths):
    return None


def make_step(paths, parameters, times):
    return torch.optim.AdamW(parameters, fused=True, **SETTINGS).step
