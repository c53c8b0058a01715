"""What the machine has is asked once, when the file is run."""

import torch

USE_CUDA = torch.cuda.is_available()


def peak_memory(fn, device):
    if not USE_CUDA or torch.device(device).type != "cuda":
        fn()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    return torch.cuda.max_memory_allocated(device)
