# fails: peak_memory::forgets_earlier_peaks as -

import torch


def peak_memory(fn, device):
    fn()
    return torch.cuda.max_memory_allocated(device) if torch.device(device).type == "cuda" else 0
