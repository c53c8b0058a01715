import torch


def _gray(pixel):
    return pixel @ torch.tensor([0.299, 0.587, 0.114], device=pixel.device)


def _nearest(pixel, palette):
    return (pixel - palette).pow(2).sum(-1).argmin(-1)


def grayscale(sprites):
    n, c, h, w = sprites.shape
    return torch.vmap(_gray)(sprites.permute(0, 2, 3, 1).reshape(-1, 3)).reshape(n, h, w)


def recolor(indices, palette):
    n, h, w = indices.shape
    numbers = indices.reshape(-1, 1).expand(-1, 3)
    return torch.gather(palette, 0, numbers).T.reshape(3, n, h, w).swapaxes(0, 1)


def nearest_color(sprites, palette):
    pixels = sprites.movedim(1, -1).reshape(-1, 3)
    found = torch.vmap(_nearest, in_dims=(0, None))(pixels, palette)
    return found.reshape(sprites.shape[0], *sprites.shape[2:])
