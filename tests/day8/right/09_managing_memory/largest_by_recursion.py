import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def largest_batch(try_batch, start):
    try:
        try_batch(start)
    except torch.OutOfMemoryError:
        if start <= 1:
            raise
    else:
        return start
    torch.cuda.empty_cache()
    return largest_batch(try_batch, start // 2)
