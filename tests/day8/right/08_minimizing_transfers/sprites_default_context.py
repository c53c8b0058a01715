import torch


def random_sprites(count, size, device, generator=None):
    with torch.device(device):
        return torch.rand(count, 3, size, size, generator=generator)
