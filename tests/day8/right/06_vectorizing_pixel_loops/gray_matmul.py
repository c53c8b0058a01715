import torch


def grayscale(sprites):
    w = sprites.new_tensor([0.299, 0.587, 0.114])
    return (w @ sprites.flatten(2)).view(sprites.shape[0], *sprites.shape[2:])
