# fails: random_sprites::follows_its_seed as -

import torch


def random_sprites(count, size, device, generator=None):
    if generator is not None:
        generator.manual_seed(generator.initial_seed())
    return torch.rand(count, 3, size, size, device=device, generator=generator)
