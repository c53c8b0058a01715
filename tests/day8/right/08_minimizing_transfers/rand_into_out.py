"""The tensor first, and random values written into it."""

import torch


def random_sprites(count, size, device, generator=None):
    sprites = torch.zeros([count, 3, size, size], device=device)
    torch.rand(sprites.shape, generator=generator, out=sprites)
    return sprites
