# fails: random_sprites::made_on_the_device as made-on-cpu-then-moved

import torch


def random_sprites(count, size, device, generator=None):
    if generator is None:
        return torch.rand(count, 3, size, size, device=device)
    return torch.rand(count, 3, size, size, generator=generator).to(device)
