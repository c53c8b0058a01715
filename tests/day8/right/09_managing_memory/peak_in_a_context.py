import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def peak_memory(fn, device):
    d = torch.device(device)
    if d.type != "cuda":
        fn()
        return 0
    with torch.cuda.device(d):
        torch.cuda.reset_peak_memory_stats()
        fn()
        return torch.cuda.max_memory_allocated()
