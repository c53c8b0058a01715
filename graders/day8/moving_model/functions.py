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
    "Move it, and do no more: mode, dtype, `requires_grad` and the settings of torch are the caller's.",
)
tell = exercise.function(
    "parameter_devices",
    "A tensor knows where it is: `tensor.device` is a torch.device, with its index.",
    "`model.named_parameters()` gives qualified names and parameters; buffers have their own `model.named_buffers()`.",
    "`state_dict()` is what is saved. Buffers registered with `persistent=False` are not in it.",
)
move.when("uses_the_device_it_is_given", hint=2, at=("to(", "cuda("))
move.when("hard-coded-cuda", "device-index-dropped", hint=2)
move.when("moves_every_parameter", hint=1, at=("for", "to("))
move.when("returns_the_same_model", hint=1, at=("return", "last return"))
CHANGING = ("set_default_device(", "eval(", "train(", "half(", "requires_grad_(", "zero_(", "to_empty(", "to(")
move.when("changes_nothing_else", hint=3, at=CHANGING)
tell.when("runs", "names_every_parameter", hint=2, at=("named_parameters(", "return"))
tell.when("names_every_buffer", "buffers-forgotten", hint=2, at=("named_buffers(", "named_parameters(", "return"))
tell.when("state-dict-is-not-all", hint=3)
tell.when("tells_the_device", hint=1, at=("to(", ".device", "return"))
tell.when("device-index-dropped", hint=1)
