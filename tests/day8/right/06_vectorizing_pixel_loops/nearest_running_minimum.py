import torch


def nearest_color(sprites, palette):
    best = torch.full_like(sprites[:, 0], float("inf"))
    index = torch.zeros_like(best, dtype=torch.int64)
    for k in range(palette.shape[0]):
        d = (sprites - palette[k][None, :, None, None]).square().sum(1)
        closer = d < best
        best = torch.where(closer, d, best)
        index = torch.where(closer, k, index)
    return index
