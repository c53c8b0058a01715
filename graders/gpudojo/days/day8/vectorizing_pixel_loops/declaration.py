"""The exercise and its functions, in the order in which students write them."""

from __future__ import annotations

from gpudojo.model.exercise import Exercise

exercise = Exercise(
    "06_vectorizing_pixel_loops",
    "Pixels all at once, without Python loops",
    points=12,
    reading=(
        "notes/broadcasting.html",
        "generated/torch.Tensor.permute.html",
        "generated/torch.argmin.html",
    ),
)
grayscale = exercise.function("grayscale")
recolor = exercise.function("recolor")
nearest = exercise.function("nearest_color")
