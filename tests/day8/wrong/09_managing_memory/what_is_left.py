# fails: peak_memory::finds_the_highest_moment as -

import torch


def peak_memory(fn, device):
    fn()
    return torch.cuda.memory_allocated(device) if torch.device(device).type == "cuda" else 0
