"""Which function has 05, and what are its hints?"""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "05_modifying_evaluation_loop_gpu",
    "An evaluation loop that runs on the GPU",
    points=14,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "generated/torch.nn.Module.html"),
)
evaluate = exercise.function(
    "evaluate",
    "Two switches, and you need both: `model.eval()` for the layers, `torch.no_grad()` for autograd.",
    "Before the loop: the model to the device and into evaluation mode. In the loop: inputs and targets to the device.",
    "`loss_fn` gives the mean over its batch: multiply by the batch's size, add up, divide by all samples at the end.",
    "`outputs.argmax(dim=1) == targets` says which samples are right; count them over all batches, then divide once.",
    "Return two Python floats (`.item()` gives one). Where there were no samples, do not divide: return (0.0, 0.0).",
    "`with torch.no_grad():` ends by itself; change no weight, gradient or `requires_grad`, and no setting of torch.",
)
evaluate.when("runs", "runs_on_the_device", "uses_the_device_it_is_given", hint=2, at=("for",))
evaluate.when("returns_the_mean_loss_per_sample", hint=3, at=("return", "last return"))
evaluate.when("returns_the_accuracy", hint=4, at=("return", "last return"))
evaluate.when("returns_two_floats", "returned-tensor", hint=5, at=("last return",))
evaluate.when("copes_with_nothing", "empty-loader-forgotten", hint=5, at=("return", "first return"))
CHANGING = ("backward(", "zero_grad(", "step(", "set_grad_enabled(", "requires_grad_(", ".requires_grad", "copy_(")
evaluate.when("leaves_weights_and_gradients_as_they_were", hint=6, at=(*CHANGING, ".data", "half(", "round_("))
evaluate.when("leaves_training_possible", "requires-grad-left-off", hint=6, at=CHANGING)
evaluate.when("leaves_batch_norm_as_it_was", hint=1, at=("reset_running_stats(", "train("))
