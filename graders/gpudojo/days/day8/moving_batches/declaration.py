"""The exercise and its functions, in the order in which students write them."""

from __future__ import annotations

from gpudojo.model.exercise import Exercise

exercise = Exercise(
    "03_moving_batches",
    "A batch on the GPU, whatever it is made of",
    points=10,
    reading=("generated/torch.Tensor.to.html", "tensor_attributes.html", "notes/cuda.html"),
)
move_batch = exercise.function("move_batch")
on_same_device = exercise.function("on_same_device")
