# fails: nearest_color::right_values as -
import torch


def nearest_color(sprites, palette):
    return (sprites[:, None] - palette[None, :, :, None, None]).square().sum(2).argmin(1).to(torch.uint8)
