# fails: select_device::takes_apples_gpu as hard-coded-cuda

import torch
def select_device(prefer="cuda"):
    return torch.device(prefer)
