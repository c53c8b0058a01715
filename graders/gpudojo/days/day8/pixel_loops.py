"""The loops that students of 06 are given, to compare their functions with."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from gpudojo.grading.call import torch


def grayscale_loop(sprites):
    """The slow way: one pixel after the other."""
    count, _, height, width = sprites.shape
    gray = torch.zeros(count, height, width, dtype=sprites.dtype, device=sprites.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                red, green, blue = sprites[n, :, y, x]
                gray[n, y, x] = 0.299 * red + 0.587 * green + 0.114 * blue
    return gray


def recolor_loop(indices, palette):
    """The slow way: one pixel after the other."""
    count, height, width = indices.shape
    sprites = torch.zeros(count, 3, height, width, dtype=palette.dtype, device=palette.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                sprites[n, :, y, x] = palette[indices[n, y, x]]
    return sprites


def nearest_color_loop(sprites, palette):
    """The slow way: one pixel after the other, and for each of them one colour after the other."""
    count, _, height, width = sprites.shape
    indices = torch.zeros(count, height, width, dtype=torch.int64, device=sprites.device)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                nearest = None
                for k, color in enumerate(palette):
                    distance = ((sprites[n, :, y, x] - color) ** 2).sum()
                    if nearest is None or distance < nearest:
                        nearest = distance
                        indices[n, y, x] = k
    return indices
