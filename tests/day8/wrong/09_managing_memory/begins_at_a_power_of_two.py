# fails: largest_batch::halves_until_it_fits as -
import torch


def largest_batch(try_batch, start):
    n = 1 << (start.bit_length() - 1)
    while True:
        try:
            try_batch(n)
            return n
        except torch.OutOfMemoryError:
            if n == 1:
                raise
        torch.cuda.empty_cache()
        n >>= 1
