# fails: select_device::returns_a_device as setting-changed
import torch


def select_device(prefer=None):
    best = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    if prefer is not None:
        d = torch.device(prefer)
        if d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available():
            return d
        if d.type == "cuda" and (d.index or 0) < torch.cuda.device_count():
            if d.index is not None:
                torch.cuda.set_device(d)
            return d
    return best
