# fails: grayscale::no_loop_over_pixels as python-loop-over-elements
import torch

def grayscale(sprites):
    count, _, height, width = sprites.shape
    gray = torch.zeros(count, height, width, device=sprites.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                red, green, blue = sprites[n, :, y, x]
                gray[n, y, x] = 0.299 * red + 0.587 * green + 0.114 * blue
    return gray
