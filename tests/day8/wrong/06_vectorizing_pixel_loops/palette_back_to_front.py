# fails: recolor::right_values as -
import torch


def recolor(indices, palette):
    return palette.flip(1)[indices].permute(0, 3, 1, 2)
