"""What does 02 ask for? Two functions, their points, hints and reading."""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "02_moving_model_to_device",
    "A model on the GPU, all of it",
    points=8,
    reading=("generated/torch.nn.Module.html", "notes/cuda.html"),
)
move = exercise.function(
    "move_model",
    "`nn.Module.to` moves parameters and buffers in place and returns the module itself.",
    "Use the `device` you were given, as it is: its index may matter.",
)
tell = exercise.function(
    "parameter_devices",
    "A tensor knows where it is: `tensor.device`.",
    "`model.named_parameters()` gives qualified names and parameters; buffers have their own `model.named_buffers()`.",
    "`state_dict()` is what is saved. Buffers registered with `persistent=False` are not in it.",
)
