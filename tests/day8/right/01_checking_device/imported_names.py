from torch import device
from torch.cuda import device_count, is_available
from torch.backends.mps import is_available as mps_is_available
def select_device(prefer=None):
    best = device("cuda") if is_available() else device("mps") if mps_is_available() else device("cpu")
    if prefer is None: return best
    wanted = device(prefer)
    there = {"cpu": True, "mps": mps_is_available(), "cuda": is_available() and (wanted.index or 0) < device_count()}
    return wanted if there.get(wanted.type) else best
