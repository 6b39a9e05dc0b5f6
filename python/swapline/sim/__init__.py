"""The simulated accelerator as torch.device("sim"); importing this registers it.

Import it before the first backward of the process: autograd starts its device threads once.
"""

import torch

from swapline import _sim
from swapline.sim import device_module

torch._register_device_module("sim", device_module)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
_sim.check_loaded_in_time()
