# fails: nearest_color::no_loop_over_pixels as python-loop-over-elements
import torch

def nearest_color(sprites, palette):
    count, _, height, width = sprites.shape
    indices = torch.zeros(count, height, width, dtype=torch.int64, device=sprites.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                distances = ((sprites[n, :, y, x] - palette) ** 2).sum(1)
                indices[n, y, x] = distances.argmin()
    return indices
