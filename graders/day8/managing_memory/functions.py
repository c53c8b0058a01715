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
)

accumulate = exercise.function(
    "accumulate_gradients",
    "`backward()` adds up: zero the gradients before the loop and after each step, not for every batch.",
    "`(loss_fn(outputs, targets) / steps).backward()`, and a step when `steps` batches have been added up.",
    "After the loop: if batches are left that no step has used, step once more.",
)

checkpointed = exercise.function(
    "checkpointed",
    "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` is `block(x)` without its activations kept.",
    "One checkpoint for each block: one around all of them recomputes everything at once and saves nothing.",
    "With `use_reentrant=True`, a block whose input requires no gradient gets no gradients either.",
)
