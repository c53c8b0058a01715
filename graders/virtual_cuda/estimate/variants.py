"""The same script with something changed: half the batch, autocast, the largest batch that fits.

Each variant is estimated in a process of its own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from virtual_cuda.estimate.changes import AUTOCAST, HALF_BATCH
from virtual_cuda.estimate.result import Estimate

_MOST_RUNS: Final = 8  # of the search for the largest batch


class CannotVary(Exception):
    """A variant cannot be made or did not run; the text is a sentence."""


class ScriptVariant(NamedTuple):
    """The options of a run that has something changed."""

    options: tuple[str, ...]  # of the command, before the script
    script: tuple[str, ...]  # with its arguments


def estimate_variant(variant: ScriptVariant) -> Estimate:
    """The estimate of a variant. Raises CannotVary."""
    command = [sys.executable, "-m", "virtual_cuda", "estimate", "--json", *variant.options]
    done = subprocess.run(
        [*command, *variant.script], capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise CannotVary(f"the changed script did not run: {last}")
    return msgspec.json.decode(done.stdout, type=Estimate)


def with_batch(script: Sequence[str], name: str, batch: int) -> tuple[str, ...]:
    """The script's words with another value for the option `name`.

    It is added at the end where it was not given.
    """
    words = list(script)
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            words[place + 1] = str(batch)
            return tuple(words)
        if word.startswith(f"{name}="):
            words[place] = f"{name}={batch}"
            return tuple(words)
    return (*words, name, str(batch))


def batch_given(script: Sequence[str], name: str) -> int | None:
    """The number that the script is given for the option `name`; None if there is none."""
    for place, word in enumerate(script):
        value = ""
        if word == name and place + 1 < len(script):
            value = script[place + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
        if value.isdecimal():
            return int(value)
    return None


def find_largest_batch(start: int, fits: Callable[[int], bool]) -> int:
    """The largest batch that fits, within one part in sixteen; 0 if none does.

    `start` is a guess. From there, ever larger steps go to a batch that fits and one that does not,
    and bisection goes on between them.
    """
    batch = max(start, 1)
    step = max(batch // 16, 1)
    low = 0
    high: int | None = None  # the least that does not fit
    for _ in range(_MOST_RUNS):
        if fits(batch):
            low = batch
        else:
            high = batch
        if high is not None and high - low <= max(low // 16, 1):
            break
        if high is None:
            batch = low + step
        elif low == 0:
            batch = max(high - step, 1)
        else:
            batch = (low + high) // 2
        step *= 2
        if batch == high:
            break
    return low


@contextlib.contextmanager
def changed(changes: Sequence[str]) -> Iterator[None]:
    """Change what a script does inside the `with` block: AUTOCAST, HALF_BATCH or nothing."""
    with contextlib.ExitStack() as undo:
        if AUTOCAST in changes:
            undo.enter_context(_autocast_in_models())
        if HALF_BATCH in changes:
            undo.enter_context(_half_batches())
        yield


@contextlib.contextmanager
def _autocast_in_models() -> Iterator[None]:
    """Let every outermost call of a module run under autocast: bfloat16 where the GPU has it."""
    import torch
    from torch.nn.modules import module

    running: list[Any] = []  # modules under way; the outermost has its autocast

    def enter(called: Any, inputs: Any) -> None:
        if not running:
            dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16
            region = torch.autocast("cuda", dtype=dtype)
            region.__enter__()
            running.append(region)
        running.append(called)

    def leave(called: Any, inputs: Any, result: Any) -> None:
        if running and running[-1] is called:
            running.pop()
        if len(running) == 1:
            running.pop().__exit__(None, None, None)

    hooks = [
        module.register_module_forward_pre_hook(enter),
        module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _half_batches() -> Iterator[None]:
    """Let every DataLoader that is made give batches of half the size."""
    from torch.utils.data import DataLoader

    loader_class: Any = DataLoader
    original = loader_class.__init__

    def make(self: Any, dataset: Any, batch_size: Any = 1, *args: Any, **named: Any) -> None:
        if isinstance(batch_size, int):
            batch_size = max(batch_size // 2, 1)
        original(self, dataset, batch_size, *args, **named)

    loader_class.__init__ = make
    try:
        yield
    finally:
        loader_class.__init__ = original
