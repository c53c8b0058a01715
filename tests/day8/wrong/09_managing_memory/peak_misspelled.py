# fails: peak_memory::runs as -
import torch


def peak_memory(fn, device):
    if torch.device(device).type != "cuda":
        fn()
        return 0
    torch.cuda.reset_peak_memory(device)
    fn()
    return torch.cuda.max_memory_allocated(device)
