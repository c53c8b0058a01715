import torch
BEST = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
def select_device(prefer=None):
    if prefer is None: return BEST
    d = torch.device(prefer)
    ok = d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available() or d.type == "cuda" and (d.index or 0) < torch.cuda.device_count()
    return d if ok else BEST
