# fails: select_device::replaces_what_is_absent as -
import torch


def select_device(prefer=None):
    have = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    best = torch.device([kind for kind in have if have[kind]][0])
    if prefer is None:
        return best
    prefer = torch.device(prefer)
    if not have[prefer.type]:
        return best
    if prefer.type == "cuda" and (prefer.index or 0) >= torch.cuda.device_count():
        return best
    return prefer
