# fails: grayscale::right_values as -
import time
import torch


def grayscale(sprites):
    weights = torch.tensor([0.299, 0.587, 0.114], device=sprites.device)
    return (sprites * weights.view(3, 1, 1)).sum(0)
