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
    "`torch.device(prefer)` takes a string or a device, and refuses nonsense; `.type` and `.index` say what was asked.",
    '"cuda:1" is there only if `torch.cuda.device_count()` is at least 2. For what is not there, return the best one.',
    '`torch.device("cuda")` makes a device of a string. Return that, and leave the settings of torch as they are.',
)
select.when("built-is-not-available", hint=1)
select.when("takes_the_gpu", hint=1, at=('"cuda"', "is_available(", "return"))
select.when("takes_apples_gpu", "falls_back_to_the_cpu", hint=1, at=("is_available(", "return"))
select.when("keeps_what_is_preferred", hint=2, at=("last return",))
select.when("device-index-dropped", hint=2, at=("last return",))
select.when("replaces_what_is_absent", hint=3, at=("last return",))
select.when("lets_torch_refuse_nonsense", hint=2, at=("except", "first return"))
select.when("returns_a_device", hint=4, at=("set_default_device(", "last return"))
select.when("string-for-device", hint=4)
