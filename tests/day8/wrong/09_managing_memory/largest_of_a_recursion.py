# fails: largest_batch::halves_until_it_fits as return-forgotten
import torch


def largest_batch(try_batch, start):
    try:
        try_batch(start)
        return start
    except torch.OutOfMemoryError:
        if start == 1:
            raise
    torch.cuda.empty_cache()
    largest_batch(try_batch, start // 2)
