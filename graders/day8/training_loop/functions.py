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
    "`.item()` gives a Python float, without the graph. Where there were no samples, do not divide: return 0.0.",
    "Use the `device` you were given as it is, and seed nothing: both are the caller's choice.",
)
train.when("runs", "moves_the_model_once", "trains_in_training_mode", hint=1, at=("eval(", "cpu(", "to(", "for"))
train.when("computes_the_loss_on_the_device", hint=1, at=("cpu(", "loss_fn("))
train.when("learns_as_it_should", hint=2, at=("last step(", "step(", "for"))
train.when("missing-zero-grad", "missing-step", "step-before-backward", hint=2)
train.when("returns_the_mean_loss_per_sample", hint=3, at=("return", "last return"))
train.when("returned-tensor", hint=4)
train.when("copes_with_nothing", "empty-loader-forgotten", hint=4, at=("return", "first return"))
train.when("uses_the_device_it_is_given", "hard-coded-cuda", "device-index-dropped", hint=5)
train.when("changes_no_settings", hint=5, at=("manual_seed(", "seed(", "set_default_device("))
