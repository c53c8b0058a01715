"""Which functions has 06, and what are their hints?"""

from __future__ import annotations

from graders.curriculum import Exercise

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
)
recolor = exercise.function(
    "recolor",
    "A tensor of indices can stand where a single index stands: `palette[indices]` looks all of them up at once.",
    "That has the shape (N, H, W, 3). The colours have to become the second dimension, not only by name.",
    "`permute` or `movedim` reorders dimensions; `reshape` and `view` only cut the same numbers up differently.",
)
nearest = exercise.function(
    "nearest_color",
    "Make room for the palette: (N, 1, 3, H, W) minus (1, K, 3, 1, 1) is every pixel minus every colour.",
    "Square the differences, sum them over the three channels, and (N, K, H, W) distances are left.",
    "`argmin` over the colours gives the index of the smallest, the first of them on a tie.",
)
