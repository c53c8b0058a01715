# fails: largest_batch::halves_until_it_fits as -
import torch


def largest_batch(try_batch, start):
    n = 1
    best = None
    while n <= start:
        try:
            try_batch(n)
            best = n
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            break
        n *= 2
    return best
