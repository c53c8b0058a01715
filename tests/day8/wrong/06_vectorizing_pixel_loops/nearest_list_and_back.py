# fails: nearest_color::stays_on_the_device as trip-through-numpy
import torch


def nearest_color(sprites, palette):
    differences = sprites[:, None] - palette[None, :, :, None, None]
    distances = (differences ** 2).sum(dim=2)
    nearest = distances.argmin(dim=1).tolist()
    return torch.tensor(nearest, device=sprites.device)
