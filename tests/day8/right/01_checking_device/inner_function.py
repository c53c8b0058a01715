import torch


def _make():
    def select_device(prefer=None):
        if prefer == "as before":
            return before
        best = "cpu"
        if torch.backends.mps.is_available():
            best = "mps"
        if torch.cuda.is_available():
            best = "cuda"
        if prefer is None:
            return torch.device(best)
        wanted = torch.device(prefer)
        count = int(wanted.type == "cpu")
        if wanted.type == "cuda":
            count = torch.cuda.device_count()
        elif wanted.type == "mps":
            count = int(torch.backends.mps.is_available())
        if (wanted.index or 0) >= count:
            return torch.device(best)
        return wanted

    return select_device
    before = None


select_device = _make()
