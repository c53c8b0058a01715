# fails: random_sprites::returns_sprites_there as -

import torch


def random_sprites(count, size, device, generator=None):
    torch.set_default_device(device)
    return torch.rand(count, 3, size, size, generator=generator)
