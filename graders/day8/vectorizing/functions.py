"""Which functions has 06, and what are their hints?"""

from __future__ import annotations

from graders.curriculum import Exercise

STAY = 'Work where the input is, and leave it as it is: no `.cpu()`, no NumPy, no "cuda", no `*=` or `[...] =` on it.'
ONES = "A single sprite or pixel has dimensions of size 1. A bare `squeeze()` drops them all: name the one you mean."
exercise = Exercise(
    "06_vectorizing_pixel_loops",
    "Pixels all at once, without Python loops",
    points=12,
    reading=("notes/broadcasting.html", "generated/torch.Tensor.permute.html", "generated/torch.argmin.html"),
)
grayscale = exercise.function(
    "grayscale",
    "`sprites[:, 0]` is the red of every pixel of every sprite at once.",
    "A number times a tensor multiplies every element; three such products can be added.",
    "Weights in a tensor need the sprites' device and the shape (3, 1, 1) to be broadcast over the channels.",
    "The weights are the loop's: 0.299 for red, 0.587 for green, 0.114 for blue; one number per pixel is left.",
    STAY,
    ONES,
)
recolor = exercise.function(
    "recolor",
    "A tensor of indices can stand where a single index stands: `palette[indices]` looks all of them up at once.",
    "`palette[indices]` has the shape (N, H, W, 3). The colours have to become the second dimension, not only by name.",
    "`permute` or `movedim` reorders dimensions; `reshape` and `view` only cut the same numbers up differently.",
    STAY,
    ONES,
)
nearest = exercise.function(
    "nearest_color",
    "Make room for the palette: (N, 1, 3, H, W) minus (1, K, 3, 1, 1) is every pixel minus every colour.",
    "Square pixel minus colour first, then sum over the three channels: (N, K, H, W) distances are left.",
    "`argmin` over the colours gives the index of the smallest, the first of them on a tie.",
    STAY,
    ONES,
)
for each in (grayscale, recolor, nearest):
    last = len(each.hints)
    each.when("right_on_the_smallest", hint=last, at=("squeeze(", "return", "last return"))
    each.when("stays_on_the_device", "leaves_its_inputs_alone", hint=last - 1, at=("[] =", "return", "last return"))
    each.when("trip-through-numpy", "numpy-on-device-tensor", "hard-coded-cuda", "input-modified", hint=last - 1)
    each.when("python-loop-over-elements", "no_loop_over_pixels", "faster_than_the_loop", hint=1)
grayscale.when("runs", hint=3)
grayscale.when("right_values", "wrong-weights", hint=4, at=("mean(", "tensor(", "return", "last return"))
recolor.when("right_values", "channels-last", hint=2, at=("permute(", "movedim(", "return", "last return"))
recolor.when("reshape-for-permute", hint=3)
nearest.when("right_values", hint=2, at=("argmin(", "return", "last return"))
nearest.when("lowest_index_on_a_tie", hint=3, at=("argmin(", "return", "last return"))
