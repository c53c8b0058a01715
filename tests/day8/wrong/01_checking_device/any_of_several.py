# fails: select_device::replaces_what_is_absent as -
import torch


def select_device(prefer=None):
    if torch.cuda.is_available():
        best = torch.device("cuda")
    elif torch.backends.mps.is_available():
        best = torch.device("mps")
    else:
        best = torch.device("cpu")
    if prefer is None:
        return best
    wanted = torch.device(prefer)
    if wanted.type == "cuda":
        there = torch.cuda.is_available() and (not wanted.index or torch.cuda.device_count() > 1)
    elif wanted.type == "mps":
        there = torch.backends.mps.is_available()
    else:
        there = wanted.type == "cpu"
    return wanted if there else best
