"""Pixels all at once, without Python loops.

Run me: dojo run exercises/day8/06_vectorizing_pixel_loops.py
Check me: pytest exercises/day8/06_vectorizing_pixel_loops.py
Read me: dojo lesson 06
"""

import time

import torch


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


def grayscale(sprites):
    """Turn (N, 3, H, W) sprites into (N, H, W) shades of grey: 0.299 red + 0.587 green + 0.114 blue.

    The same values as `grayscale_loop`, without a Python loop over pixels, rows or sprites. The result is on the
    device of `sprites`, which are not changed; nothing goes through NumPy or the host.

    About 2 lines. Read: https://pytorch.org/docs/stable/notes/broadcasting.html
    """
    red, green, blue = sprites.unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def recolor(indices, palette):
    """Paint by numbers: int64 indices (N, H, W) and a palette (K, 3) give (N, 3, H, W) sprites.

    The same values as `recolor_loop`, without a Python loop over pixels, rows or sprites. Indices and palette are on
    one device, and so is the result; neither is changed; nothing goes through NumPy or the host.

    About 2 lines. Read: https://pytorch.org/docs/stable/generated/torch.Tensor.permute.html
    """
    return palette[indices].permute(0, 3, 1, 2)


def nearest_color(sprites, palette):
    """For every pixel of (N, 3, H, W) sprites the index of the nearest colour of a palette (K, 3): integer (N, H, W).

    Nearest by squared distance, the lowest index on a tie; int64 or int32. The same values as `nearest_color_loop`,
    without a Python loop over pixels, rows or sprites. Sprites and palette are on one device, and so is the result;
    neither is changed; nothing goes through NumPy or the host.

    About 3 lines. Read: https://pytorch.org/docs/stable/generated/torch.argmin.html
    """
    differences = sprites.unsqueeze(1) - palette.view(1, -1, 3, 1, 1)
    return differences.square().sum(2).argmin(1)


def seconds(function, *inputs):
    """The time of one call, until its result has arrived on the CPU."""
    start = time.perf_counter()
    function(*inputs).cpu()
    return time.perf_counter() - start


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    torch.manual_seed(8)
    device = (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    heart = [
        "        ",
        " ## ##  ",
        "#+###o# ",
        "####### ",
        " #####  ",
        "  ###   ",
        "   #    ",
        "        ",
    ]
    numbers = torch.tensor([[[" #+o".index(pixel) for pixel in row] for row in heart]] * 8).to(
        device
    )
    palette = torch.tensor([[0.1, 0.1, 0.2], [0.9, 0.1, 0.2], [1.0, 0.8, 0.8], [0.5, 0.0, 0.2]]).to(
        device
    )
    noisy = (recolor_loop(numbers, palette) + 0.15 * torch.randn(8, 3, 8, 8).to(device)).clamp(0, 1)
    print("Paint by numbers, grey, noise, and the nearest colours of the palette:")
    drawn, titles = {}, ("recolor", "grayscale", "noisy", "nearest_color")
    for slow, fast, inputs in (
        (recolor_loop, recolor, (numbers, palette)),
        (grayscale_loop, grayscale, (noisy,)),
        (nearest_color_loop, nearest_color, (noisy, palette)),
    ):
        drawn[fast.__name__] = slow(*inputs)
        try:
            drawn[fast.__name__] = fast(*inputs)
            ratio = seconds(slow, *inputs) / seconds(fast, *inputs)
            print(f"{fast.__name__} on {device}: {ratio:.0f} times as fast as the loop")
        except NotImplementedError:
            print(
                f"{fast.__name__} is still to do, so the loop draws: open this file and fill it in."
            )
    gray, nearest = (
        drawn["grayscale"][0].expand(3, 8, 8),
        palette[drawn["nearest_color"].long()[0]].permute(2, 0, 1),
    )
    show(torch.stack([drawn["recolor"][0], gray, noisy[0], nearest]), titles)
