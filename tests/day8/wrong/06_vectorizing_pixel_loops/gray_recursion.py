# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch


def grayscale(sprites):
    if len(sprites) == 1:
        return 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]
    return torch.cat([grayscale(sprites[:1]), grayscale(sprites[1:])])
