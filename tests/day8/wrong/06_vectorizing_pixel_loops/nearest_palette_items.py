# fails: nearest_color::stays_on_the_device as trip-through-numpy
import torch

def nearest_color(sprites, palette):
    distances = []
    for color in palette:
        distances.append(sum((sprites[:, c] - color[c].item()) ** 2 for c in range(3)))
    return torch.stack(distances).argmin(0)
