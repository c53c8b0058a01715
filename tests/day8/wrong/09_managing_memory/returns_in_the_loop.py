# fails: largest_batch::halves_until_it_fits as loop-left-early
import torch


def largest_batch(try_batch, start):
    while start >= 1:
        try:
            try_batch(start)
        except torch.OutOfMemoryError:
            start = start // 2
            torch.cuda.empty_cache()
        return start
