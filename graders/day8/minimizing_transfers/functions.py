"""Which functions does 08 ask for, and what helps with them?"""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "08_minimizing_transfers",
    "Fewer transfers between host and GPU",
    points=7,
    reading=("generated/torch.Tensor.numpy.html", "notes/cuda.html", "data.html"),
)

to_numpy = exercise.function(
    "to_numpy",
    "NumPy reads the host's memory, and knows no gradients: first `.detach()`, then `.cpu()`, then `.numpy()`.",
    "`.detach()` gives a second view without a graph; `requires_grad_(False)` would change the tensor you were given.",
    "`tensor.numpy(force=True)` detaches, copies to the host and converts in one call.",
    "The array has the tensor's own dtype and shape: nothing is converted, flattened or squeezed on the way.",
)

predict = exercise.function(
    "predict",
    "Before the loop: `model.to(device)`, `model.eval()`, a list; under `torch.no_grad()`: the inputs to the device.",
    "Keep the outputs on the device while the loop runs; `torch.cat` joins them, and one `.cpu()` brings them back.",
    "`for inputs, _ in loader`: nothing is done with the targets, so they stay where they are.",
)

random_sprites = exercise.function(
    "random_sprites",
    "Every function that makes a tensor takes its shape and `device=`; `torch.rand` also takes `generator=`.",
    "`torch.rand(...).to(device)` makes the values on the CPU and then copies all of them.",
    "Hand `generator` on and seed nothing: whoever calls the function decides about that.",
    "`torch.rand` draws evenly from 0 to 1, in float32; `torch.randn` draws from a bell curve.",
)

make_loader = exercise.function(
    "make_loader",
    "`DataLoader(dataset, ..., pin_memory=...)`: True when the device is CUDA, False otherwise.",
    '`device` may be a string or a device: `torch.device(device).type == "cuda"` understands both.',
    "Pass `batch_size`, `shuffle` and `num_workers` on; options that need workers fail with `num_workers=0`.",
)
to_numpy.when("keeps_values_and_dtype", hint=4, at=("tolist(", "float(", "squeeze(", "return", "last return"))
to_numpy.when("leaves_the_tensor_alone", "requires-grad-left-off", hint=2, at=("requires_grad_(", ".data", "zero_("))
predict.when("returns_every_output", "copies_back_once", hint=2, at=("return", "last return"))
predict.when("leaves_the_targets", hint=3)
predict.when("builds_no_graph", hint=1, at=("requires_grad_(", ".requires_grad", "set_grad_enabled("))
random_sprites.when("returns_sprites_there", hint=1, at=("set_default_device(", "rand(", "return"))
random_sprites.when("made-on-cpu-then-moved", "result-thrown-away", hint=2)
random_sprites.when("follows_its_seed", hint=3, at=("manual_seed(", "seed(", "rand(", "return"))
random_sprites.when("spreads_evenly", hint=4, at=("randn(", "rand(", "return"))
make_loader.when("runs", "yields_every_sample_once", "passes_the_workers_on", hint=3, at=("DataLoader(", "return"))
make_loader.when("shuffles_when_asked", hint=3, at=("DataLoader(", "return"))
make_loader.when("pins_exactly_for_cuda", hint=2, at=("DataLoader(", "return"))
make_loader.when("pinned-for-cpu", hint=1)
