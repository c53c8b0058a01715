# fails: nearest_color::faster_than_the_loop as -
import torch


def nearest_color(sprites, palette):
    best = torch.full_like(sprites[:, 0], float("inf"))
    nearest = torch.zeros_like(best, dtype=torch.int64)
    for k in range(256):
        color = palette[min(k, len(palette) - 1)]
        distance = (sprites - color[:, None, None]).square().sum(1)
        nearest = torch.where(distance < best, k, nearest)
        best = torch.minimum(distance, best)
    return nearest
