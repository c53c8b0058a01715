import torch

grayscale = lambda sprites: torch.tensordot(sprites, torch.tensor([0.299, 0.587, 0.114]).to(sprites), dims=([1], [0]))
recolor = lambda indices, palette: torch.moveaxis(palette[indices, :], 3, 1)


def nearest_color(sprites, palette):
    return torch.sort(((sprites.unsqueeze(2) - palette.t()[None, :, :, None, None]) ** 2).sum(1), dim=1, stable=True)[1][:, 0]
