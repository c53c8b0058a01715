# fails: largest_batch::halves_until_it_fits as -

import torch


def largest_batch(try_batch, start):
    torch.cuda.empty_cache()
    try_batch(start)
    return start
