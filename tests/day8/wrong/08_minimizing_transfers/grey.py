# fails: random_sprites::spreads_evenly as -

import torch


def random_sprites(count, size, device, generator=None):
    return torch.rand(count, 1, size, size, device=device, generator=generator).repeat(1, 3, 1, 1)
