"""The exercise and its functions, in the order in which students write them."""

from __future__ import annotations

from gpudojo.model.exercise import Exercise

exercise = Exercise(
    "02_moving_model_to_device",
    "A model on the GPU, all of it",
    points=8,
    reading=("generated/torch.nn.Module.html", "notes/cuda.html"),
)
move_model = exercise.function("move_model")
parameter_devices = exercise.function("parameter_devices")
