# fails: select_device::replaces_what_is_absent as -

import torch
def select_device(prefer=None):
    best = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    if prefer is None: return best
    if str(prefer).split(":")[0] not in ("cuda", "mps", "cpu"):
        raise ValueError(f"unknown device {prefer}")
    d = torch.device(prefer)
    ok = d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available() or d.type == "cuda" and (d.index or 0) < torch.cuda.device_count()
    return d if ok else best
