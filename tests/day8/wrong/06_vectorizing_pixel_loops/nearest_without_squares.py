# fails: nearest_color::right_values as -
import torch


def nearest_color(sprites, palette):
    diff = sprites[:, None] - palette[None, :, :, None, None]
    dist = diff.sum(dim=2).abs()
    return dist.argmin(dim=1)
