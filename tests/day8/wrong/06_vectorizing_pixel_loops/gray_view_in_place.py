# fails: grayscale::leaves_its_inputs_alone as input-modified
import time
import torch


def grayscale(sprites):
    red, green, blue = sprites.unbind(1)
    red *= 0.299
    green *= 0.587
    blue *= 0.114
    return red + green + blue
