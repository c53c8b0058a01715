"""What may a grader without a device claim about pictures?

The claims about 06, as plain assertions on CPU tensors.
"""

import inspect
import itertools
import time

import torch

FASTER = 3.0  # times as fast as the loop, at least


def grayscale_loop(sprites):
    """The brightness of each pixel, as the exercise defines it."""
    count, _, height, width = sprites.shape
    gray = torch.zeros(count, height, width)
    for n, y, x in every_pixel(count, height, width):
        red, green, blue = sprites[n, :, y, x]
        gray[n, y, x] = 0.299 * red + 0.587 * green + 0.114 * blue
    return gray


def recolor_loop(indices, palette):
    """The colour of the palette for each index, as the exercise defines it."""
    count, height, width = indices.shape
    sprites = torch.zeros(count, 3, height, width)
    for n, y, x in every_pixel(count, height, width):
        index = indices[n, y, x]
        sprites[n, :, y, x] = palette[index]
    return sprites


def nearest_color_loop(sprites, palette):
    """The index of the nearest colour for each pixel, as the exercise defines it."""
    count, _, height, width = sprites.shape
    indices = torch.zeros(count, height, width, dtype=torch.int64)
    for n, y, x in every_pixel(count, height, width):
        difference = sprites[n, :, y, x] - palette
        distance = (difference**2).sum(1)
        indices[n, y, x] = distance.argmin()
    return indices


def every_pixel(count, height, width):
    """The number of the sprite, the row and the column of each pixel."""
    return itertools.product(range(count), range(height), range(width))


def random_arguments(name, count, height, width, colours):
    """Random pictures, with a palette where a function wants one; always the same ones."""
    dice = torch.Generator().manual_seed(5)
    sprites = torch.rand(count, 3, height, width, generator=dice)
    palette = torch.rand(colours, 3, generator=dice)
    if name == "grayscale":
        return (sprites,)
    if name == "nearest_color":
        return sprites, palette
    indices = torch.randint(0, colours, (count, height, width), generator=dice)
    return indices, palette


LOOPS = {
    "grayscale": grayscale_loop,
    "recolor": recolor_loop,
    "nearest_color": nearest_color_loop,
}
SMALLEST = (  # sprites, height, width and colours
    (1, 4, 4, 3),
    (2, 1, 1, 3),
    (2, 1, 5, 3),
    (2, 3, 3, 1),
)
BLACK = [0.0, 0.0, 0.0]


def require_right_values(name, function, arguments):
    """Compare what a function returns with what the loop returns. Raises AssertionError."""
    found = function(*arguments)
    right = LOOPS[name](*arguments)
    assert isinstance(found, torch.Tensor)
    assert found.shape == right.shape
    if right.dtype == torch.int64:
        assert found.dtype in (torch.int64, torch.int32)
        assert torch.equal(found.long(), right)
    else:
        assert found.is_floating_point()
        assert torch.allclose(found.float(), right, rtol=0, atol=1e-4)


def fastest_of_three(function, arguments):
    """The seconds of the fastest of three calls."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        function(*arguments)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def right_values(name, function):
    """It returns what the loop returns."""
    require_right_values(name, function, random_arguments(name, 3, 5, 7, 6))
    require_right_values(name, function, random_arguments(name, 2, 8, 4, 3))


def right_on_the_smallest(name, function):
    """It returns what the loop returns, also for one sprite, one pixel, one row, one colour."""
    for shape in SMALLEST:
        require_right_values(name, function, random_arguments(name, *shape))


def leaves_its_inputs_alone(name, function):
    """Its arguments hold the same values afterwards."""
    arguments = random_arguments(name, 2, 4, 4, 3)
    before = [argument.clone() for argument in arguments]
    function(*arguments)
    for argument, copy in zip(arguments, before, strict=True):
        assert torch.equal(argument, copy)


def faster_than_the_loop(name, function):
    """It is at least three times as fast as the loop."""
    arguments = random_arguments(name, 2, 12, 12, 8)
    function(*arguments)  # the first call of an operation pays for it
    fast = fastest_of_three(function, arguments)
    slow = fastest_of_three(LOOPS[name], arguments)
    assert slow >= FASTER * fast, f"only {slow / fast:.1f} times as fast as the loop"


def lowest_index_on_a_tie(nearest_color):
    """Of colours that are equally near, the first is taken."""
    sprites = torch.full((1, 3, 2, 2), 0.5)
    equally_near = [[0.25, 0.5, 0.5], [0.75, 0.5, 0.5], [0.5, 0.25, 0.5]]
    palette = torch.tensor([BLACK, *equally_near])
    indices = nearest_color(sprites, palette)
    assert indices.tolist() == [[[1, 1], [1, 1]]]


def claim_about(claim, name):
    """The claim about one of the three functions, with that function as its parameter."""

    def about(function):
        claim(name, function)

    about.__name__ = f"{name}_{claim.__name__}"
    parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    about.__signature__ = inspect.Signature([parameter])
    return about


def all_picture_claims():
    """Every claim about each of the three functions, and one about ties."""
    claims = []
    for name in LOOPS:
        claims.append(claim_about(right_values, name))
        claims.append(claim_about(right_on_the_smallest, name))
        claims.append(claim_about(leaves_its_inputs_alone, name))
        claims.append(claim_about(faster_than_the_loop, name))
    claims.append(lowest_index_on_a_tie)
    return tuple(claims)


PICTURE_CLAIMS = all_picture_claims()
