import torch
RANKING = [("cuda", lambda: torch.cuda.is_available()), ("mps", lambda: torch.backends.mps.is_available()), ("cpu", lambda: True)]
def _here(d):
    d = torch.device(d)
    if not dict(RANKING).get(d.type, lambda: False)():
        return False
    return d.type != "cuda" or d.index is None or d.index in range(torch.cuda.device_count())
def select_device(prefer=None):
    candidates = ([prefer] if prefer is not None else []) + [k for k, _ in RANKING]
    return torch.device(next(filter(_here, candidates)))
