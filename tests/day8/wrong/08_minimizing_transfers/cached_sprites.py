# fails: random_sprites::follows_its_seed as -
from functools import lru_cache

import torch


@lru_cache(maxsize=None)
def random_sprites(count, size, device, generator=None):
    return torch.rand(count, 3, size, size, device=device, generator=generator)
