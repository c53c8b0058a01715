# fails: recolor::no_loop_over_pixels as python-loop-over-elements
import torch

def paint(indices, palette):
    if indices.dim() == 0:
        return palette[indices]
    return torch.stack([paint(part, palette) for part in indices])

def recolor(indices, palette):
    return paint(indices, palette).permute(0, 3, 1, 2)
