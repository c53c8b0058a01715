# fails: largest_batch::runs as -

import torch


def largest_batch(try_batch, start):
    while True:
        try:
            try_batch(start)
            return start
        except torch.cuda.OutOfMemory:
            if start == 1:
                raise
        torch.cuda.empty_cache()
        start //= 2
