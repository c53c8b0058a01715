# fails: select_device::keeps_what_is_preferred as -
import torch
def select_device(prefer=None):
    if torch.cuda.is_available():
        best = torch.device("cuda")
    elif torch.backends.mps.is_available():
        best = torch.device("mps")
    else:
        best = torch.device("cpu")
    if prefer is None:
        return best
    if prefer == "cpu":
        return torch.device("cpu")
    wish = torch.device(prefer)
    if wish.type == best.type and (wish.index or 0) < max(1, torch.cuda.device_count()):
        return wish
    return best
