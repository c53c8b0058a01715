# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch

def one(sprite):
    return 0.299 * sprite[0] + 0.587 * sprite[1] + 0.114 * sprite[2]

def grayscale(sprites):
    return torch.stack(list(map(one, sprites)))
