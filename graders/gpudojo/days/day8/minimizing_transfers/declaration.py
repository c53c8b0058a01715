"""The exercise and its functions, in the order in which students write them."""

from __future__ import annotations

from gpudojo.model.exercise import Exercise

exercise = Exercise(
    "08_minimizing_transfers",
    "Fewer transfers between host and GPU",
    points=7,
    reading=("generated/torch.Tensor.numpy.html", "notes/cuda.html", "data.html"),
)
to_numpy = exercise.function("to_numpy")
predict = exercise.function("predict")
random_sprites = exercise.function("random_sprites")
make_loader = exercise.function("make_loader")
