# fails: select_device::falls_back_to_the_cpu as built-is-not-available

import torch
def select_device(prefer=None):
    best = torch.accelerator.current_accelerator() or torch.device("cpu")
    if prefer is None: return best
    d = torch.device(prefer)
    ok = d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available() or d.type == "cuda" and (d.index or 0) < torch.cuda.device_count()
    return d if ok else best
