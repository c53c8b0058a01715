import torch
def select_device(prefer=None):
    best = torch.device("cuda") if torch.cuda.is_available() else torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
    if prefer is None:
        return best
    d = torch.device(prefer)
    if d.type == "mps":
        return d if torch.backends.mps.is_available() else best
    try:
        torch.empty(0, device=d)
        return d
    except Exception:
        return best
