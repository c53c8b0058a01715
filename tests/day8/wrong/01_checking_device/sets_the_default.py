# fails: select_device::returns_a_device as setting-changed

import torch
def select_device(prefer=None):
    best = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    if prefer is not None:
        d = torch.device(prefer)
        ok = d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available() or d.type == "cuda" and (d.index or 0) < torch.cuda.device_count()
        if ok: best = d
    torch.set_default_device(best)
    return best
