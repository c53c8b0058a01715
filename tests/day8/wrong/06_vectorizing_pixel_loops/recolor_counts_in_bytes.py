# fails: recolor::right_values as -
import torch


def recolor(indices, palette):
    return palette[indices.to(torch.uint8).long()].permute(0, 3, 1, 2)
