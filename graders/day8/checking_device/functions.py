"""What does 01 ask for? One function, its points, hints and reading."""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "01_checking_device",
    "Which device does this machine have?",
    points=8,
    reading=("tensor_attributes.html", "notes/cuda.html", "notes/mps.html"),
)
select = exercise.function(
    "select_device",
    "Ask torch what this machine has: `torch.cuda.is_available()` and `torch.backends.mps.is_available()`.",
    "`torch.device(prefer)` understands a string as well as a device; its `.type` and `.index` say what was asked for.",
    '"cuda:1" is there only if `torch.cuda.device_count()` is at least 2.',
)
