"""The simulated accelerator as torch.device("sim"), with torch.sim as its module.

Importing this registers the device and the process-group backend "swapline". Import it before the
first backward of the process: autograd starts its device threads once.

Numbers are real (computed by CPU kernels, bit-equal to the CPU's); time is virtual, from a cost
model; memory has a limit; a race checker follows every access. Times here are virtual
milliseconds, sizes bytes. A `device` is an index, "sim:1" or a torch.device; there are eight.

    swapline.sim.configure("ascend-910b", capacity="96MiB", trace=True)
    ...                                      # anything on torch.device("sim")
    swapline.sim.time_ms(), swapline.sim.memory()["peak_allocated_bytes"], swapline.sim.num_races()
"""

import atexit
import os

import torch

_others = torch._C._get_privateuse1_backend_name()
if _others not in ("privateuseone", "sim"):
    raise ImportError(
        f"the backend {_others!r} is loaded, and torch has room for one backend of its kind in a "
        "process: the simulated device needs a process without it. A backend that `import torch` "
        "loads by itself (torch_npu) stays away with TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the "
        "environment."
    )

from swapline import _sim
from swapline.sim import device_module, process_group
from swapline.sim.figures import (
    advance_host_ms,
    clear_log,
    clear_races,
    clear_trace,
    counters,
    log,
    memory,
    name_stream,
    num_races,
    pinned_memory,
    races,
    reset_peak_memory,
    set_memory_kind,
    take_away,
    time_ms,
    trace,
)
from swapline.sim.settings import configure, faults, options, presets, settings

context_options = _sim.context_options

__all__ = [
    "advance_host_ms",
    "clear_log",
    "clear_races",
    "clear_trace",
    "configure",
    "context_options",
    "counters",
    "faults",
    "log",
    "memory",
    "name_stream",
    "num_races",
    "options",
    "pinned_memory",
    "presets",
    "races",
    "reset_peak_memory",
    "set_memory_kind",
    "settings",
    "take_away",
    "time_ms",
    "trace",
]

# torch asks for the module under the device's name; no public function registers one.
torch._register_device_module("sim", device_module)
# Tensor.sim(), .is_sim, Module.sim() and the same of storages.
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
process_group.register()
_sim.check_loaded_in_time()


def _let_threads_finish(process: int = os.getpid()) -> None:
    """A thread of autograd that needs Python while Python ends would abort the process."""
    if os.getpid() == process:  # a forked process has none of these threads
        _sim.wait_until_idle_for(10.0)


atexit.register(_let_threads_finish)
