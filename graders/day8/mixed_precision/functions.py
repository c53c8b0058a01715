"""Which function has 07, what are its hints, and with which numbers is it tried?"""

from __future__ import annotations

from typing import Final

from graders.curriculum import Exercise

exercise = Exercise(
    "07_mixed_precision",
    "A training step in mixed precision",
    points=12,
    reading=("amp.html", "notes/amp_examples.html"),
)
step = exercise.function(
    "mixed_precision_step",
    "`with torch.autocast(device_type=...)` goes around the forward pass and the loss, and ends before backward.",
    "`scaler.scale(loss).backward()`, then `scaler.step(optimizer)`, then `scaler.update()`.",
    "To clip, the gradients must have their own size again: `scaler.unscale_(optimizer)` first.",
    '`torch.device(device).type` is what autocast wants, for a string such as "cuda:0" as well as for a device.',
)
SCALE: Final = 1024.0
STALE: Final = 4096.0  # what lies in the gradients before: large enough to be seen even divided by the scale
SOFTLY: Final = 50.0  # above the norm of the gradients, below that of the scaled ones
HARD: Final = 0.05
