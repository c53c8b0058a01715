"""What does 04 ask for? One function, its points, hints and reading."""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "04_modifying_training_loop_gpu",
    "A training loop that runs on the GPU",
    points=14,
    reading=("generated/torch.Tensor.to.html", "generated/torch.nn.Module.html", "notes/cuda.html"),
)
train = exercise.function(
    "train_epoch",
    "Before the loop: the model to the device, once, and into training mode. In the loop: inputs and targets as well.",
    "Per batch: zero the gradients, forward, loss, backward, step, in this order.",
    "`loss_fn` gives the mean over its batch: multiply by the batch's size, add up, divide by all samples at the end.",
)
