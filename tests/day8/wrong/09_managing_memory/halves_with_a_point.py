# fails: largest_batch::halves_until_it_fits as -
import torch
import torch.utils.checkpoint


def largest_batch(try_batch, start):
    n = start
    while True:
        try:
            try_batch(n)
            return n
        except torch.cuda.OutOfMemoryError:
            if n <= 1:
                raise
        torch.cuda.empty_cache()
        n = n / 2
