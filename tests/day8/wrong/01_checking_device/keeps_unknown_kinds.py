# fails: select_device::replaces_what_is_absent as -
import torch


def select_device(prefer=None):
    best = "cpu"
    if torch.backends.mps.is_available():
        best = "mps"
    if torch.cuda.is_available():
        best = "cuda"
    if prefer is None:
        return torch.device(best)
    wanted = torch.device(prefer)
    count = 1
    if wanted.type == "cuda":
        count = torch.cuda.device_count()
    elif wanted.type == "mps":
        count = int(torch.backends.mps.is_available())
    if wanted.type != "cpu" and (wanted.index or 0) >= count:
        return torch.device(best)
    return wanted
