# fails: select_device::replaces_what_is_absent as index-not-checked

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
    if wanted.type == "cuda" and torch.cuda.is_available():
        return wanted
    if wanted.type == "mps" and torch.backends.mps.is_available():
        return wanted
    return torch.device("cpu") if wanted.type == "cpu" else best
