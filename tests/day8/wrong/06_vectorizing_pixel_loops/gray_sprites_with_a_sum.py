# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch


def grayscale(sprites):
    factors = (0.299, 0.587, 0.114)
    out = []
    for sprite in sprites:
        out.append(sum(factor * channel for factor, channel in zip(factors, sprite)))
    return torch.stack(out)
