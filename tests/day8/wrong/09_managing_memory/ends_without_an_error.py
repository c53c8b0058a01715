# fails: largest_batch::raises_when_nothing_fits as -
import torch


def largest_batch(try_batch, start):
    while start >= 1:
        try:
            try_batch(start)
            return start
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            start //= 2
