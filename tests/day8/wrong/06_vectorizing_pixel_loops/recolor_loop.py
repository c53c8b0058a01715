# fails: recolor::no_loop_over_pixels as python-loop-over-elements
import torch

def recolor(indices, palette):
    count, height, width = indices.shape
    sprites = torch.zeros(count, 3, height, width, device=palette.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                sprites[n, :, y, x] = palette[indices[n, y, x]]
    return sprites
