# fails: select_device::depends_on_the_machine as never-the-gpu
import torch


def select_device(prefer=None):
    device = torch.device("cpu")
    return device
