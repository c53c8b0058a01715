import torch


def select_device(prefer=None):
    def is_here(device):
        try:
            module = torch.get_device_module(device)
        except RuntimeError:
            return False
        if not hasattr(module, "is_available") or not hasattr(module, "device_count"):
            return False
        return module.is_available() and (device.index or 0) < module.device_count()

    candidates = [torch.device(kind) for kind in ("cuda", "mps", "cpu")]
    if prefer is not None:
        candidates.insert(0, torch.device(prefer))
    return next(filter(is_here, candidates))
