# fails: select_device::keeps_what_is_preferred as device-index-dropped
import torch


def select_device(prefer=None):
    available = []
    if torch.cuda.is_available():
        available.append("cuda")
    if torch.backends.mps.is_available():
        available.append("mps")
    available.append("cpu")
    if prefer is None:
        return torch.device(available[0])
    wish = torch.device(prefer)
    kind = wish.type
    if kind == "cuda" and wish.index is not None and wish.index >= torch.cuda.device_count():
        return torch.device(available[0])
    if kind not in available:
        return torch.device(available[0])
    return torch.device(kind)
