# fails: grayscale::stays_on_the_device as trip-through-numpy
import torch


def grayscale(sprites):
    weights = torch.tensor([0.299, 0.587, 0.114], device=sprites.device)
    if not sprites.any():
        return sprites[:, 0].clone()
    return torch.einsum("nchw,c->nhw", sprites, weights)
