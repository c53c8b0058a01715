# fails: random_sprites::made_on_the_device as result-thrown-away

import torch


def random_sprites(count, size, device, generator=None):
    sprites = torch.empty(count, 3, size, size).uniform_()
    sprites.to(device)
    return sprites
