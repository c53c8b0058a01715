# fails: recolor::no_loop_over_pixels as python-loop-over-elements
import torch

def recolor(indices, palette):
    colors = torch.stack([palette[i] for i in indices.flatten()])
    return colors.reshape(*indices.shape, 3).permute(0, 3, 1, 2)
