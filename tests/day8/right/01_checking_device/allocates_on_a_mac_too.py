import torch


def _there(device):
    try:
        torch.zeros(1, device=device)
    except Exception:
        return False
    return True


def select_device(prefer=None):
    best = next(torch.device(name) for name in ("cuda", "mps", "cpu") if _there(name))
    if prefer is None:
        return best
    wanted = torch.device(prefer)
    return wanted if _there(wanted) else best
