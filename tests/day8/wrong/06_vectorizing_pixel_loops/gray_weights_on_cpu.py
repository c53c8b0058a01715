# fails: grayscale::runs as -
import torch

def grayscale(sprites):
    return (sprites * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1)
