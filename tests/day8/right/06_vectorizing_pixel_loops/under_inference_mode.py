import torch


@torch.inference_mode()
def grayscale(sprites):
    assert sprites.ndim == 4 and sprites.shape[1] == 3
    partly = torch.add(0.299 * sprites[:, 0], sprites[:, 1], alpha=0.587)
    return torch.add(partly, sprites[:, 2], alpha=0.114)


@torch.inference_mode()
def recolor(indices, palette):
    return torch.take_along_dim(palette, indices.reshape(-1, 1), dim=0).unflatten(0, indices.shape).moveaxis(3, 1)


@torch.inference_mode()
def nearest_color(sprites, palette):
    pixels = sprites.permute(0, 2, 3, 1)
    distances = pixels.square().sum(-1, keepdim=True) - 2 * pixels @ palette.T + palette.square().sum(-1)
    return distances.argmin(-1)
