import torch


def select_device(prefer=None):
    found = torch.accelerator.current_accelerator(check_available=True) if torch.accelerator.is_available() else None
    best = found or torch.device("cpu")
    if prefer is None:
        return best
    wanted = torch.device(prefer)
    counts = {"cpu": 1, best.type: max(torch.accelerator.device_count(), 1)}
    return wanted if (wanted.index or 0) < counts.get(wanted.type, 0) else best
