# fails: nearest_color::right_values as -
import torch


def nearest_color(sprites, palette):
    pixels = sprites.permute(0, 2, 3, 1)
    scores = torch.einsum("nhwc,kc->nhwk", pixels, palette)
    return scores.argmax(-1)
