# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch


def grayscale(sprites):
    return torch.vmap(lambda s: 0.299 * s[0] + 0.587 * s[1] + 0.114 * s[2], chunk_size=1)(sprites)
