import torch


def halves(n):
    while n >= 1:
        yield n
        n >>= 1


def largest_batch(try_batch, start):
    for n in halves(start):
        failed = False
        try:
            try_batch(n)
        except torch.cuda.OutOfMemoryError:
            if n == 1:
                raise
            failed = True
        if not failed:
            return n
        torch.cuda.empty_cache()
