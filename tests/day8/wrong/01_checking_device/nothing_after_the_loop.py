# fails: select_device::returns_a_device as return-forgotten
import torch


def select_device(prefer=None):
    there = {"cpu": 1, "cuda": 0, "mps": 0}
    if torch.cuda.is_available():
        there["cuda"] = torch.cuda.device_count()
    if torch.backends.mps.is_available():
        there["mps"] = 1
    if prefer is not None:
        wanted = torch.device(prefer)
        if (wanted.index or 0) < there.get(wanted.type, 0):
            return wanted
    for kind in ("cuda", "mps"):
        if there[kind]:
            return torch.device(kind)
