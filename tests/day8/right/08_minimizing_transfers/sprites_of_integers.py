import torch


def random_sprites(count, size, device, generator=None):
    steps = torch.randint(0, 2**24, (count, 3, size, size), device=device, generator=generator)
    return steps.to(torch.float32) / 2**24
