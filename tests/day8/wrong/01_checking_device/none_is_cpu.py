# fails: select_device::takes_the_gpu as -
import torch


def select_device(prefer="cpu"):
    d = torch.device(prefer)
    if d.type == "cuda" and (d.index or 0) < torch.cuda.device_count():
        return d
    if d.type == "mps" and torch.backends.mps.is_available():
        return d
    return torch.device("cpu")
