# fails: select_device::takes_apples_gpu as -
import torch


def select_device(prefer=None):
    if torch.cuda.is_available:
        best = torch.device("cuda")
    elif torch.backends.mps.is_available:
        best = torch.device("mps")
    else:
        best = torch.device("cpu")
    if prefer is None:
        return best
    wanted = torch.device(prefer)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    enough = wanted.type != "cuda" or (wanted.index or 0) < torch.cuda.device_count()
    return wanted if there.get(wanted.type, False) and enough else best
