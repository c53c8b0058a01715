import torch
from functools import lru_cache
@lru_cache
def best():
    return torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
@lru_cache(maxsize=None)
def select_device(prefer=None):
    if prefer is None: return best()
    d = torch.device(prefer)
    ok = d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available() or d.type == "cuda" and (d.index or 0) < torch.cuda.device_count()
    return d if ok else best()
