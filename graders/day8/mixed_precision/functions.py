"""Which function has 07, what are its hints, and with which numbers is it tried?"""

from __future__ import annotations

from typing import Final

from graders.curriculum import Exercise

exercise = Exercise(
    "07_mixed_precision",
    "A training step in mixed precision",
    points=12,
    reading=("amp.html", "notes/amp_examples.html"),
)
step = exercise.function(
    "mixed_precision_step",
    "`with torch.autocast(device_type=...)` goes around the forward pass and the loss, and ends before backward.",
    "Zero the gradients; then `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`, once each.",
    "To clip, the gradients must have their own size again: `scaler.unscale_(optimizer)` first.",
    "Inputs and targets go `.to(device)`, whichever device it is; autocast wants its `torch.device(device).type`.",
    "What is returned is the loss itself, not the scaled one, as a float: `loss.item()`.",
)
SCALE: Final = 1024.0
STALE: Final = 4096.0  # what lies in the gradients before: large enough to be seen even divided by the scale
SOFTLY: Final = 50.0  # above the norm of the gradients, below that of the scaled ones
HARD: Final = 0.05
step.when("runs", hint=2)
step.when("runs_under_autocast", "backward_outside_autocast", hint=1)
step.when("inputs-on-cpu", "targets-on-cpu", "result-thrown-away", "hard-coded-cuda", hint=4)
step.when("learns_from_this_batch_alone", "works_without_scaling", hint=2, at=("zero_grad(", "step("))
step.when("scaler_steps_the_optimizer", "backward_on_the_scaled_loss", hint=2, at=("step(", "backward("))
step.when("scaler_is_updated_once", hint=2, at=("GradScaler(", "update(", "step("))
step.when("skips_the_step_on_overflow", hint=2, at=("nan_to_num_(", "nan_to_num(", "step("))
step.when("missing-zero-grad", "missing-step", "step-before-backward", "scaler-without-update", hint=2)
CLIPPING = ("clip_grad_norm_(", "clip_grad_value_(", "unscale_(", "if max_norm", "norm(")
step.when("unscales_before_clipping", "clipped-before-unscale", hint=3, at=CLIPPING)
step.when("returns_the_unscaled_loss", "returned-tensor", "returned-scaled-loss", hint=5, at=("return", "last return"))
