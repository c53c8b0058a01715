# fails: peak_memory::is_nothing_on_the_cpu as -

import torch


def peak_memory(fn, device):
    if not torch.cuda.is_available():
        fn()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    return torch.cuda.max_memory_allocated(device)
