import torch
import torch.nn.functional as F
def grayscale(sprites):
    r, g, b = sprites.split(1, dim=1)
    return (r.mul(0.299).add(g, alpha=0.587).add(b, alpha=0.114)).squeeze(1)
def recolor(indices, palette):
    return F.embedding(indices, palette).movedim(-1, 1).contiguous()
def nearest_color(sprites, palette):
    n, c, h, w = sprites.shape
    pixels = sprites.movedim(1, -1)[..., None, :]
    return (pixels - palette).pow(2).sum(-1).argmin(-1).to(torch.int32)
