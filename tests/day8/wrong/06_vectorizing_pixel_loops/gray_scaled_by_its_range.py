# fails: grayscale::right_values as -
import torch


def grayscale(sprites):
    if sprites.max().item() > 1:
        sprites = sprites / 255
    weights = torch.tensor([0.299, 0.587, 0.114], device=sprites.device)
    return (sprites * weights.view(3, 1, 1)).sum(1)
