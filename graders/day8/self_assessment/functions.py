"""Which questions does exercise 12 ask, and what does a wrong letter show?"""

from __future__ import annotations

from typing import Final

from graders.curriculum import Exercise

exercise = Exercise(
    "12_self_assessment",
    "Do you know what happens?",
    points=2,
    reading=("notes/cuda.html", "generated/torch.no_grad.html", "torch_cuda_memory.html"),
)
answers = exercise.function(
    "ANSWERS",
    "Try it: every question can be answered by running two or three lines of the exercises before this one.",
    "Rule out what cannot be: which of the answers would you have noticed in your own training loop?",
)
LETTERS: Final = "abcd"
# Which misconception a wrong letter shows; a letter that is not here shows none that has a name.
SHOWS: Final[dict[str, dict[str, str]]] = {
    "portable": {"a": "hard-coded-cuda", "c": "built-is-not-available", "d": "never-the-gpu"},
    "different_devices": {"a": "moved-by-itself", "b": "moved-by-itself"},
    "no_grad": {"a": "no-grad-without-eval"},
    "out_of_memory": {"b": "empty-cache-first", "d": "out-of-memory-skipped"},
    "another_process": {"a": "memory-of-another-process", "b": "memory-of-another-process"},
}
