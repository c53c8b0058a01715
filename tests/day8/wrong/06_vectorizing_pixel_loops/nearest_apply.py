# fails: nearest_color::no_loop_over_pixels as python-loop-over-elements
import numpy as np
import torch

def nearest_color(sprites, palette):
    colors = palette.cpu().numpy()
    found = np.apply_along_axis(lambda pixel: ((pixel - colors) ** 2).sum(1).argmin(), 1, sprites.cpu().numpy())
    return torch.as_tensor(found, device=sprites.device)
