"""Which functions does 09 ask for, and what helps with them?"""

from __future__ import annotations

from graders.curriculum import Exercise

exercise = Exercise(
    "09_managing_memory",
    "Managing the GPU's memory",
    points=6,
    reading=("notes/cuda.html", "checkpoint.html", "notes/amp_examples.html"),
)

peak_memory = exercise.function(
    "peak_memory",
    "`torch.cuda.max_memory_allocated(device)` is the highest since `torch.cuda.reset_peak_memory_stats(device)`.",
    "Reset before `fn()`, read after it. `memory_allocated` is what is left when `fn()` is over, not the peak.",
    "On the CPU there are no such figures: call `fn()` and return 0.",
)

largest_batch = exercise.function(
    "largest_batch",
    "`try:` calls try_batch, `except torch.OutOfMemoryError:` catches that one error and no other.",
    "At 1 there is nothing left to halve: a bare `raise` inside the except block raises the error again.",
    "`torch.cuda.empty_cache()` between two tries gives back what the failed one left in the cache.",
    "Try `start`, then half of it (`// 2`) and so on, each size once; return the first that ran.",
)

accumulate = exercise.function(
    "accumulate_gradients",
    "`backward()` adds up: zero the gradients before the loop and after each step, not for every batch.",
    "`(loss_fn(outputs, targets) / steps).backward()`; after `steps` batches a step, and only then zeroed gradients.",
    "After the loop: if batches are left that no step has used, step once more.",
    "Before the loop `model.to(device)`, and neither `train()` nor `eval()`; in it inputs and targets to the device.",
    "Count every `optimizer.step()`, the one for the remainder too, and return the count.",
)

checkpointed = exercise.function(
    "checkpointed",
    "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` is `block(x)` without its activations kept.",
    "One checkpoint for each block: one around all of them recomputes everything at once and saves nothing.",
    "With `use_reentrant=True`, a block whose input requires no gradient gets no gradients either.",
    "A loop over no blocks does nothing, and leaves `x` as it is.",
)
peak_memory.when("forgets_earlier_peaks", "finds_the_highest_moment", hint=2, at=("return", "last return"))
peak_memory.when("measures_the_right_device", hint=1, at=("max_memory_allocated(", "return", "last return"))
peak_memory.when("is_nothing_on_the_cpu", "hard-coded-cuda", hint=3, at=("first return",))
largest_batch.when("halves_until_it_fits", hint=4, at=("except", "for", "return"))
largest_batch.when("gives_the_cache_back", hint=3, at=("empty_cache(", "except"))
largest_batch.when("raises_when_nothing_fits", hint=2, at=("except",))
accumulate.when("runs", "works_on_the_device", "leaves_the_mode_alone", hint=4, at=("eval(", "train(", "to(", "for"))
accumulate.when("steps_after_every_group", hint=2, at=("step(", "backward("))
accumulate.when("missing-step", "step-before-backward", "loss-not-divided", hint=2)
accumulate.when("steps_for_the_remainder", "remainder-dropped", hint=3, at=("last step(", "step("))
accumulate.when("returns_the_number_of_steps", hint=5, at=("return", "last return"))
WRAPPING = ("checkpoint(", "checkpoint_sequential(", "return", "last return")
checkpointed.when("runs", "needs_less_memory", hint=2, at=WRAPPING)
checkpointed.when("gives_the_same_output", "gives_the_same_gradients", hint=1, at=("detach(", "no_grad(", *WRAPPING))
checkpointed.when("trains_on_plain_data", "reentrant-on-plain-data", hint=3, at=("requires_grad_(", *WRAPPING))
checkpointed.when("copes_with_no_blocks", hint=4, at=WRAPPING)
