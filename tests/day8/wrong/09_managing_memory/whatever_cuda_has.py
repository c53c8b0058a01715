# fails: peak_memory::is_nothing_on_the_cpu as -

import torch


def peak_memory(fn, device):
    if not torch.cuda.is_available():
        fn()
        return 0
    where = torch.device(device) if torch.device(device).type == "cuda" else None
    torch.cuda.reset_peak_memory_stats(where)
    fn()
    return torch.cuda.max_memory_allocated(where)
