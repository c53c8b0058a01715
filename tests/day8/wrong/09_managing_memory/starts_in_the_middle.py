# fails: largest_batch::halves_until_it_fits as -

import torch


def largest_batch(try_batch, start):
    low, high, best = 1, start, None
    while low <= high:
        middle = (low + high) // 2
        try:
            try_batch(middle)
            low, best = middle + 1, middle
        except torch.OutOfMemoryError:
            if middle == 1:
                raise
            high = middle - 1
        torch.cuda.empty_cache()
    return best
