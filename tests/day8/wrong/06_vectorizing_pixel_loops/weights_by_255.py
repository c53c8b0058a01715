# fails: grayscale::right_values as -
import torch


def grayscale(sprites):
    w = torch.tensor([299, 587, 114], device=sprites.device, dtype=sprites.dtype) / 255
    return torch.einsum("nchw,c->nhw", sprites, w)
