import torch


def grayscale(sprites):
    return 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]


def recolor(indices, palette):
    return palette[indices].permute(0, 3, 1, 2)


def nearest_color(sprites, palette):
    distances = ((sprites[:, None] - palette[None, :, :, None, None]) ** 2).sum(dim=2)
    return torch.argmin(distances, dim=1)
