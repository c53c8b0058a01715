# fails: largest_batch::swallows_nothing_else as other-error-taken-for-memory
import torch
import torch.utils.checkpoint


def largest_batch(try_batch, start):
    n = start
    while True:
        failed = False
        try:
            try_batch(n)
        except RuntimeError as e:
            if "out of memory" not in str(e) or n == 1:
                raise
            failed = True
        if not failed:
            return n
        torch.cuda.empty_cache()
        n = n // 2
