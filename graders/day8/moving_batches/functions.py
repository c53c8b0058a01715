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
    "`type(batch)(items)` is of the batch's own type; a named tuple, which has `_fields`, takes them as `(*items)`.",
    "`tensor.to(device)` returns the moved tensor, and the tensor itself where there is nothing to move.",
    "Hand `device` and `non_blocking` on as you were given them, to `.to` and to every `move_batch` inside.",
)
same = exercise.function(
    "on_same_device",
    "Collect `tensor.device` of every tensor in a set; there must not be two different ones.",
    "A module has `.parameters()` and `.buffers()`; a structure is searched item by item, as in `move_batch`.",
    "Compare devices, not their `.type`: cuda:0 and cuda:1 are two.",
)
TENSOR = ("if Tensor", "if is_tensor", "to(")
move.when("moves_a_pair", hint=1, at=("if list", "if tuple", "for", "return"))
move.when("result-thrown-away", hint=4)
move.when("does_not_copy_what_is_there", "already-there-copied", hint=4, at=("deepcopy(", "clone(", *TENSOR))
move.when("keeps_the_structure", "structure-changed", "named-tuple-constructor", hint=3)
move.when("moves_every_tensor", "targets-on-cpu", hint=2, at=("if list", "if tuple", "for", "return"))
move.when("leaves_other_things_alone", hint=1, at=("tensor(", "as_tensor(", "deepcopy(", "last return"))
move.when("leaves_the_input_alone", "input-modified", hint=2, at=("set_default_device(", "[] =", ".data"))
move.when("uses_the_device_it_is_given", "hard-coded-cuda", hint=5, at=TENSOR)
move.when("device-index-dropped", hint=5, at=("if type", *TENSOR))
move.when("passes_non_blocking_on", "non-blocking-dropped", "always-non-blocking", hint=5, at=TENSOR)
same.when("compares_tensors", "is_true_of_nothing", hint=1, at=("return", "last return"))
same.when("searches_structures", hint=2, at=("if list", "if tuple", "if dict", "for"))
same.when("searches_modules", hint=2, at=("if Module", "parameters(", "return", "last return"))
same.when("tells_gpus_apart", "device-index-dropped", hint=3, at=("return", "last return"))
