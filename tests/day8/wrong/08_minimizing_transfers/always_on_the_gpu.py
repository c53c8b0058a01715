# fails: random_sprites::made_on_the_device as hard-coded-cuda

import torch


def random_sprites(count, size, device, generator=None):
    if generator is not None and generator.device.type == "cpu":
        generator = torch.Generator("cuda").manual_seed(generator.initial_seed())
    return torch.rand(count, 3, size, size, device="cuda", generator=generator)
