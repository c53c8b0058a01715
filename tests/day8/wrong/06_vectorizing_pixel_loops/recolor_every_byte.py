# fails: recolor::faster_than_the_loop as -
import torch
from torch.nn import functional as F

def recolor(indices, palette):
    colours = max(256, len(palette))
    padded = F.pad(palette, (0, 0, 0, colours - len(palette)))
    sprites = torch.zeros(indices.shape[0], 3, *indices.shape[1:], device=palette.device)
    for k in range(colours):
        sprites = torch.where((indices == k)[:, None], padded[k][:, None, None], sprites)
    return sprites
