# fails: peak_memory::measures_the_right_device as current-gpu-used
import torch


def peak_memory(fn, device):
    if torch.device(device).type != "cuda":
        fn()
        return 0
    torch.cuda.reset_peak_memory_stats()
    fn()
    return torch.cuda.max_memory_allocated(device)
