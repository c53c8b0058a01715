# fails: largest_batch::halves_until_it_fits as -
import torch
import torch.utils.checkpoint


def largest_batch(try_batch, start):
    size = start
    while size > 1:
        try:
            try_batch(size)
            return size
        except torch.OutOfMemoryError:
            pass
        torch.cuda.empty_cache()
        size //= 2
    raise torch.OutOfMemoryError("not even one sample fits")
