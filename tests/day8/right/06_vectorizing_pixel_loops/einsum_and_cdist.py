import torch
from torch.nn import functional as F


def grayscale(sprites: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=sprites.dtype, device=sprites.device)
    return torch.einsum("nchw,c->nhw", sprites, weights)


def recolor(indices: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    return F.embedding(indices, palette).movedim(-1, 1)


def nearest_color(sprites: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    pixels = sprites.permute(0, 2, 3, 1)
    return torch.cdist(pixels.reshape(-1, 3), palette).argmin(dim=1).reshape(pixels.shape[:3])
