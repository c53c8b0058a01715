# fails: select_device::depends_on_the_machine as hard-coded-cuda
import torch


def select_device(prefer=None):
    return torch.device("cuda")
