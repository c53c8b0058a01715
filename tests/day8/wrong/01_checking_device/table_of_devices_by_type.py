# fails: select_device::keeps_what_is_preferred as device-index-dropped
import torch


def select_device(prefer=None):
    devices = {}
    if torch.cuda.is_available():
        devices["cuda"] = torch.device("cuda")
    if torch.backends.mps.is_available():
        devices["mps"] = torch.device("mps")
    devices["cpu"] = torch.device("cpu")
    best = next(iter(devices.values()))
    if prefer is not None:
        wish = torch.device(prefer)
        if wish.type in devices and (wish.index or 0) < max(torch.cuda.device_count(), 1):
            return devices[wish.type]
    return best
