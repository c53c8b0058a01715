# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch


def _mix(sprite):
    total = torch.zeros_like(sprite[0])
    for weight, channel in zip((0.299, 0.587, 0.114), sprite):
        total = total + weight * channel
    return total


def grayscale(sprites):
    mixed = []
    place = 0
    while place < len(sprites):
        mixed.append(_mix(sprites[place]))
        place += 1
    return torch.stack(mixed)
