# fails: grayscale::right_values as -
import torch


def grayscale(sprites):
    weights = torch.tensor([299, 587, 114], device=sprites.device)
    return (sprites * weights.view(1, 3, 1, 1)).sum(1) // 1000
