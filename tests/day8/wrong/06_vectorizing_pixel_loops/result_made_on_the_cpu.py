# fails: recolor::stays_on_the_device as made-on-the-cpu
import torch


def recolor(indices, palette):
    n, h, w = indices.shape
    out = torch.zeros(n, 3, h, w)
    for c in range(3):
        out[:, c] = palette[:, c][indices]
    return out
