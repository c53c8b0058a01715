# fails: largest_batch::swallows_nothing_else as -

import torch


def largest_batch(try_batch, start):
    while True:
        try:
            try_batch(start)
            return start
        except torch.OutOfMemoryError:
            if start == 1:
                raise
        except Exception as error:
            raise ValueError("try_batch is broken") from error
        torch.cuda.empty_cache()
        start //= 2
