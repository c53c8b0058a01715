# fails: select_device::keeps_what_is_preferred as device-index-dropped
import torch


def select_device(prefer=None):
    options = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if prefer is not None:
        wish = torch.device(prefer)
        ok = options.get(wish.type, False)
        if wish.type == "cuda" and wish.index is not None:
            ok = ok and wish.index < torch.cuda.device_count()
        if ok:
            return torch.device(wish.type)
    return torch.device(next(name for name, there in options.items() if there))
