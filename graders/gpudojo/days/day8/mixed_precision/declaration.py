"""The exercise and its function."""

from __future__ import annotations

from gpudojo.model.exercise import Exercise

exercise = Exercise(
    "07_mixed_precision",
    "A training step in mixed precision",
    points=12,
    reading=("amp.html", "notes/amp_examples.html"),
)
step = exercise.function("mixed_precision_step")
