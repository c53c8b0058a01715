import torch


def grayscale(sprites):
    w = sprites.new_tensor([0.299, 0.587, 0.114])
    return (sprites.permute(0, 2, 3, 1) @ w)


def recolor(indices, palette):
    return palette.T[:, indices].transpose(0, 1)


def nearest_color(sprites, palette):
    pixels = sprites.permute(0, 2, 3, 1).unsqueeze(3)
    return ((pixels - palette) ** 2).sum(-1).argmin(-1)
