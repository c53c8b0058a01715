# fails: random_sprites::spreads_evenly as -
import torch


def random_sprites(count, size, device, generator=None):
    sprites = torch.randint(0, 256, (count, 3, size, size), device=device, generator=generator)
    return sprites / 255
