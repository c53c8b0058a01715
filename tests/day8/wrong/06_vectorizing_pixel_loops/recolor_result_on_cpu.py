# fails: recolor::stays_on_the_device as made-on-the-cpu
import torch

def recolor(indices, palette):
    sprites = torch.empty(indices.shape[0], 3, *indices.shape[1:])
    sprites[:] = palette[indices].permute(0, 3, 1, 2)
    return sprites
