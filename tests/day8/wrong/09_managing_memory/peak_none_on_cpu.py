# fails: peak_memory::is_nothing_on_the_cpu as -
import torch


def peak_memory(fn, device):
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        fn()
        return torch.cuda.max_memory_allocated(device)
    fn()
