# fails: nearest_color::right_values as reshape-for-permute
import torch

def nearest_color(sprites, palette):
    n, c, h, w = sprites.shape
    return torch.cdist(sprites.reshape(-1, 3), palette).argmin(1).reshape(n, h, w)
