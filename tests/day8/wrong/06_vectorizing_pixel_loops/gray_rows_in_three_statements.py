# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch


def grayscale(sprites):
    red, green, blue = sprites.unbind(1)
    gray = torch.empty_like(red)
    for y in range(gray.shape[1]):
        shade = 0.299 * red[:, y]
        shade = shade + 0.587 * green[:, y] + 0.114 * blue[:, y]
        gray[:, y] = shade
    return gray
