# fails: random_sprites::runs as -

import torch


def random_sprites(count, size, device, generator=None):
    return torch.rand(count, 3, size, size, device=device, generator=generator, seed=0)
