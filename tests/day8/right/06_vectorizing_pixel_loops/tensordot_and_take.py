import torch


def grayscale(sprites):
    w = torch.as_tensor((0.299, 0.587, 0.114), dtype=sprites.dtype, device=sprites.device)
    return torch.tensordot(w, sprites, dims=([0], [1]))


def recolor(indices, palette):
    flat = indices.long().unsqueeze(1) * 3 + torch.arange(3, device=indices.device).view(1, 3, 1, 1)
    return torch.take(palette, flat)


def nearest_color(sprites, palette):
    best = torch.full_like(sprites[:, 0], float("inf"))
    where = torch.zeros_like(best, dtype=torch.long)
    for k, colour in enumerate(palette):
        d = ((sprites - colour[None, :, None, None]) ** 2).sum(1)
        closer = d < best
        best = torch.where(closer, d, best)
        where = torch.where(closer, k, where)
    return where
