# fails: grayscale::runs as made-on-the-cpu
import torch

def grayscale(sprites):
    return (sprites * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1)
