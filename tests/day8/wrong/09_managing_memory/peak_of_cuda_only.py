# fails: peak_memory::is_nothing_on_the_cpu as cuda-for-every-device
import torch


def peak_memory(fn, device):
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    return torch.cuda.max_memory_allocated(device)
