# fails: recolor::no_loop_over_pixels as python-loop-over-elements
import torch

def recolor(indices, palette):
    colors = torch.stack(list(map(lambda i: palette[i.item()], indices.flatten())))
    return colors.reshape(*indices.shape, 3).permute(0, 3, 1, 2)
