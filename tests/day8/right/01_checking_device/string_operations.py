import torch


def select_device(prefer=None):
    there = [f"cuda:{n}" for n in range(torch.cuda.device_count()) if torch.cuda.is_available()]
    there += ["cuda"] * bool(there)
    there += ["mps", "mps:0"] * torch.backends.mps.is_available() + ["cpu", "cpu:0"]
    if prefer is not None and str(torch.device(prefer)) in there:
        return torch.device(prefer)
    kinds = {name.partition(":")[0]: None for name in there}
    return torch.device(*list(kinds)[:1])
