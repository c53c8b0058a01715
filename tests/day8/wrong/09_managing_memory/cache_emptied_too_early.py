# fails: largest_batch::gives_the_cache_back as -

import torch


def largest_batch(try_batch, start):
    torch.cuda.empty_cache()
    while True:
        try:
            try_batch(start)
            return start
        except torch.OutOfMemoryError:
            if start == 1:
                raise
        start //= 2
