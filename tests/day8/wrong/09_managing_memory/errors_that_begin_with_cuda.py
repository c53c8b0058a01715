# fails: largest_batch::swallows_nothing_else as other-error-taken-for-memory
import torch

def largest_batch(try_batch, start):
    size = start
    while True:
        try:
            try_batch(size)
            return size
        except RuntimeError as error:
            if not str(error).startswith("CUDA") or size == 1:
                raise
        torch.cuda.empty_cache()
        size //= 2
