# fails: select_device::takes_the_gpu as never-the-gpu

import torch
def select_device(prefer=None):
    return torch.device(prefer or "cpu")
