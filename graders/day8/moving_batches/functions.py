"""What does 03 ask for? Two functions, their points, hints and reading."""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "03_moving_batches",
    "A batch on the GPU, whatever it is made of",
    points=10,
    reading=("generated/torch.Tensor.to.html", "tensor_attributes.html", "notes/cuda.html"),
)
move = exercise.function(
    "move_batch",
    "Ask what `batch` is: `isinstance(batch, torch.Tensor)`, a dict, a list or tuple, or anything else.",
    "For a container, build a new one of the same type from `move_batch(item, device, non_blocking)` of its items.",
    "A named tuple has `_fields`; build it with `type(batch)(*items)`, a tuple with `type(batch)(items)`.",
    "`tensor.to(device)` returns the moved tensor, and the tensor itself where there is nothing to move.",
)
same = exercise.function(
    "on_same_device",
    "Collect `tensor.device` of every tensor in a set; there must not be two different ones.",
    "A module has `.parameters()` and `.buffers()`; a structure is searched item by item, as in `move_batch`.",
    "Compare devices, not their `.type`: cuda:0 and cuda:1 are two.",
)
