import functools, torch
def as_device(f):
    @functools.wraps(f)
    def g(*a, **k):
        return torch.device(f(*a, **k))
    return g
@as_device
def select_device(prefer=None):
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if prefer is None: return best
    d = torch.device(prefer)
    n = torch.cuda.device_count() if d.type == "cuda" else 1 if d.type == "cpu" or d.type == "mps" and torch.backends.mps.is_available() else 0
    return d if (d.index or 0) < n or d.type == "cpu" else best
