import torch


def select_device(prefer=None):
    if prefer is not None:
        d = torch.device(prefer)
        if d.type == "cpu":
            return d
        if d.type == "cuda" and torch.cuda.is_available() and (d.index is None or d.index < torch.cuda.device_count()):
            return d
        if d.type == "mps" and torch.backends.mps.is_available():
            return d
    return torch.device(
        "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    )
