import torch


def _available():
    found = {"cpu": 1}
    if torch.backends.mps.is_available():
        found["mps"] = 1
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.device_count()
    return found


def select_device(prefer: str | torch.device | None = None) -> torch.device:
    available = _available()
    if prefer is not None:
        device = torch.device(prefer)
        if (device.index or 0) < available.get(device.type, 0):
            return device
    return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if kind in available))
