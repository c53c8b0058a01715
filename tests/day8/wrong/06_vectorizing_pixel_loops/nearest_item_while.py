# fails: nearest_color::no_loop_over_pixels as python-loop-over-elements
import torch

def nearest_color(sprites, palette):
    pixels = sprites.permute(0, 2, 3, 1).reshape(-1, 3)
    found, i = [], 0
    while i < len(pixels):
        found.append((pixels[i] - palette).square().sum(1).argmin().item())
        i += 1
    return torch.tensor(found, device=sprites.device).view(sprites.shape[0], *sprites.shape[2:])
