# fails: peak_memory::finds_the_highest_moment as -
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def peak_memory(fn, device):
    if torch.device(device).type == "cpu":
        fn(); return 0
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    return torch.cuda.max_memory_allocated(device) // 1024
