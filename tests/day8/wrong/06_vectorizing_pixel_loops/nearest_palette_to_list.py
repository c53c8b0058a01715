# fails: nearest_color::stays_on_the_device as trip-through-numpy
import torch

def nearest_color(sprites, palette):
    red, green, blue = sprites.unbind(1)
    distances = [(red - r) ** 2 + (green - g) ** 2 + (blue - b) ** 2 for r, g, b in palette.tolist()]
    return torch.stack(distances).argmin(0)
