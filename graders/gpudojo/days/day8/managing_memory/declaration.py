"""The exercise and its functions, in the order in which students write them."""

from __future__ import annotations

from gpudojo.model.exercise import Exercise

exercise = Exercise(
    "09_managing_memory",
    "Managing the GPU's memory",
    points=6,
    reading=("notes/cuda.html", "checkpoint.html", "notes/amp_examples.html"),
)
peak_memory = exercise.function("peak_memory")
largest_batch = exercise.function("largest_batch")
accumulate = exercise.function("accumulate_gradients")
checkpointed = exercise.function("checkpointed")
