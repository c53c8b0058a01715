# fails: select_device::falls_back_to_the_cpu as built-is-not-available

import torch


def select_device(prefer=None):
    if torch.cuda.is_available():
        best = torch.device("cuda")
    elif torch.backends.mps.is_available():
        best = torch.device("mps")
    else:
        best = torch.device("cuda" if torch.backends.cuda.is_built() else "cpu")
    if prefer is None:
        return best
    wanted = torch.device(prefer)
    if wanted.type == "cuda":
        there = torch.cuda.is_available() and (wanted.index or 0) < torch.cuda.device_count()
    elif wanted.type == "mps":
        there = torch.backends.mps.is_available()
    else:
        there = wanted.type == "cpu"
    return wanted if there else best
