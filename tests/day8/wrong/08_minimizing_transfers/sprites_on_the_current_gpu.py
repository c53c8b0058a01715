# fails: random_sprites::finds_the_second_gpu as device-index-dropped
import torch


def random_sprites(count, size, device, generator=None):
    kind = torch.device(device).type
    return torch.rand(count, 3, size, size, device=kind, generator=generator)
