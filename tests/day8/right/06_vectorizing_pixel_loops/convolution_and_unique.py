import torch
import torch.nn.functional as F


def grayscale(sprites):
    return F.conv2d(sprites, sprites.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).squeeze(1)


def recolor(indices, palette):
    return F.embedding(indices.long(), palette).movedim(-1, 1)


def nearest_color(sprites, palette):
    n, _, h, w = sprites.shape
    flat = sprites.permute(0, 2, 3, 1).reshape(-1, 3)
    colours, inverse = torch.unique(flat, dim=0, return_inverse=True)
    best = (colours[:, None] - palette[None]).square().sum(-1).argmin(1)
    return best[inverse].view(n, h, w)
