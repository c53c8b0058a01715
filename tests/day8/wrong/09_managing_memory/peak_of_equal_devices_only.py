# fails: peak_memory::finds_the_highest_moment as -
import torch

def peak_memory(fn, device):
    if device == torch.device("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        fn()
        peak = torch.cuda.max_memory_allocated(device)
    else:
        fn()
        peak = 0
    return peak
