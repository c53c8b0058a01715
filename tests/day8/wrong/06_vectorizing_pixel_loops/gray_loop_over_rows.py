# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch

def grayscale(sprites):
    rows = [0.299 * row[:, 0] + 0.587 * row[:, 1] + 0.114 * row[:, 2] for row in sprites.unbind(2)]
    return torch.stack(rows, dim=1)
