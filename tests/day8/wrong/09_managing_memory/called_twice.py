# fails: peak_memory::finds_the_highest_moment as -

import torch


def peak_memory(fn, device):
    fn()
    if torch.device(device).type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    return torch.cuda.max_memory_allocated(device)
