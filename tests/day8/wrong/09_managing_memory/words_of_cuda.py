# fails: largest_batch::swallows_nothing_else as other-error-taken-for-memory

import re

import torch


def largest_batch(try_batch, start):
    while start:
        try:
            try_batch(start)
            return start
        except Exception as error:
            if re.match(r"CUDA out of memory\. Tried to allocate", str(error)) is None or start == 1:
                raise
        torch.cuda.empty_cache()
        start //= 2
