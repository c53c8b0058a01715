# fails: select_device::returns_a_device as string-for-device

import torch
def select_device(prefer=None):
    best = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    if prefer is None: return best
    d = torch.device(prefer)
    if d.type == "cuda" and (d.index or 0) < torch.cuda.device_count(): return prefer
    if d.type == "mps" and torch.backends.mps.is_available(): return prefer
    if d.type == "cpu": return prefer
    return best
