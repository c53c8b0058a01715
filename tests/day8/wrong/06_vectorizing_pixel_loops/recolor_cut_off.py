# fails: recolor::right_values as -
import torch


def recolor(indices, palette):
    safe = indices.clamp(0, 3)
    return torch.nn.functional.embedding(safe, palette).movedim(-1, 1)
