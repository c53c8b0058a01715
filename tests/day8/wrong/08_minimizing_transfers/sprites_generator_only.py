# fails: random_sprites::follows_its_seed as -
import torch


def random_sprites(count, size, device, generator=None):
    if generator is None:
        generator = torch.Generator(device)
    return torch.rand(count, 3, size, size, device=device, generator=generator)
