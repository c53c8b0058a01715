# fails: largest_batch::swallows_nothing_else as other-error-taken-for-memory

import torch


def largest_batch(try_batch, start):
    while True:
        try:
            try_batch(start)
            return start
        except RuntimeError:
            if start == 1:
                raise
        torch.cuda.empty_cache()
        start //= 2
