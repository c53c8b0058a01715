# fails: select_device::takes_the_gpu as -

import torch
def select_device(prefer=None):
    if torch.backends.mps.is_available(): best = torch.device("mps")
    elif torch.cuda.is_available(): best = torch.device("cuda")
    else: best = torch.device("cpu")
    if prefer is None: return best
    d = torch.device(prefer)
    ok = d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available() or d.type == "cuda" and (d.index or 0) < torch.cuda.device_count()
    return d if ok else best
