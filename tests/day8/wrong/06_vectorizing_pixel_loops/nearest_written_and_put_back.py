# fails: nearest_color::leaves_its_inputs_alone as input-modified
import torch


def nearest_color(sprites, palette):
    x = sprites.permute(0, 2, 3, 1)
    best = []
    for color in palette:
        x -= color
        best.append((x ** 2).sum(-1))
        x += color
    return torch.stack(best).argmin(0)
