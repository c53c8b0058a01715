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
)
