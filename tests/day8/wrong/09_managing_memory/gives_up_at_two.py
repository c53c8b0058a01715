# fails: largest_batch::halves_until_it_fits as -

import torch


def largest_batch(try_batch, start):
    while True:
        try:
            try_batch(start)
            return start
        except torch.OutOfMemoryError:
            if start <= 2:
                raise
        torch.cuda.empty_cache()
        start //= 2
