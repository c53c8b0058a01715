# fails: random_sprites::spreads_evenly as -

import torch


def random_sprites(count, size, device, generator=None):
    return torch.randn(count, 3, size, size, device=device, generator=generator).clamp(0, 1)
