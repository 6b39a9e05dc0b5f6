"""The systems that are compared, one file each.

A file has
    NAME                       in the table
    WORKLOAD                   "layer inputs" or "optimizer"
    missing(paths)             why it cannot run here, or None; `paths` are the command line's
    make_step(paths, ...)      builds it on a workload and returns what runs one training step
                               (layer inputs: layers, then step(x); optimizer: parameters, times,
                               then step())
    forget()                   optional: lets go of what it keeps at class or module level
    WARM_UP                    optional: steps before those that are measured, where it learns
    NOTE                       optional: what to know when reading its row

Originals run as they are: their files are loaded from the paths given, with stand-ins only for
what they import (stand_ins.py), and with the simulated device under the name they expect. Each
system has a process of its own, as some replace parts of torch.
"""

LAYER_INPUTS = "layer inputs"
OPTIMIZER = "optimizer"

# In the order of the table; the first of each workload is what the others are compared with.
FILES = (
    "recompute",
    "save_on_cpu",
    "mindspeed",
    "trl",
    "deepspeed",
    "megatron",
    "swapline_wrap",
    "swapline_recompute",
    "adamw",
    "torchtitan_npu",
    "fsdp2_cpu_offload",
    "swapline_adamw",
)
