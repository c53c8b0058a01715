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
    "`tensor.numpy(force=True)` does all three.",
)

predict = exercise.function(
    "predict",
    "Before the loop: `model.to(device)`, `model.eval()`, a list for the outputs; the loop under `torch.no_grad()`.",
    "Keep the outputs on the device while the loop runs; `torch.cat` joins them, and one `.cpu()` brings them back.",
    "`for inputs, _ in loader`: nothing is done with the targets, so they stay where they are.",
)

random_sprites = exercise.function(
    "random_sprites",
    "Every function that makes a tensor takes `device=`; `torch.rand` also takes `generator=`.",
    "`torch.rand(...).to(device)` makes the values on the CPU and then copies all of them.",
    "Do not seed anything here: whoever calls the function decides about that.",
)

make_loader = exercise.function(
    "make_loader",
    "`DataLoader(dataset, ..., pin_memory=...)`: True when the device is CUDA, False otherwise.",
    '`device` may be a string or a device: `torch.device(device).type == "cuda"` understands both.',
    "Pass `batch_size`, `shuffle` and `num_workers` on; options that need workers fail with `num_workers=0`.",
)
