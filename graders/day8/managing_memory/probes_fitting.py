"""How much memory does `peak_memory` find, and which sizes does `largest_batch` try?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from graders.day8.managing_memory.functions import largest_batch, peak_memory
from graders.probes.calling import Call, StudentRaised, several
from graders.probes.late import torch

KIB = 1024
# What is allocated before `fn`, at most and at last inside it, and long before.
BLOCKS = {"before": 64 * KIB, "highest": 768 * KIB, "left": 128 * KIB, "earlier": 4096 * KIB}


def _measured(call: Call, device: Any, told: Any) -> dict[str, Any]:
    """A peak in the middle of `fn`, something there before, and an earlier, higher peak that is over.

    All blocks are small ones, which the allocator counts to the byte whatever it has cached.
    """
    on_gpu = torch.device(device).type == "cuda"

    def block(size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8, device=device)

    calls: list[int] = []
    kept: list[Any] = []

    def fn() -> str:
        calls.append(1)
        first, second = block(BLOCKS["highest"] // 3), block(BLOCKS["highest"] // 3 * 2)
        del first, second
        kept.append(block(BLOCKS["left"]))
        return "what fn returns is nobody's business"

    base = torch.cuda.memory_allocated(device) if on_gpu else 0
    before = block(BLOCKS["before"])
    earlier = [block(BLOCKS["earlier"] // 4) for _ in range(4)]
    earlier.clear()
    value = call(fn, told)
    del before
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {
        "class": type(value).__name__,
        "value": value - base if whole and on_gpu else value if whole else None,
        "shown": repr(value)[:60],
        "calls": len(calls),
        "blocks": BLOCKS,
    }


def _on_this_device(call: Call) -> dict[str, Any]:
    """Every way of naming the device; where it is no CUDA device, the CPU only."""
    if call.device.type != "cuda":
        return {"'cpu'": _measured(call, "cpu", "cpu")}
    spelled: dict[str, Any] = {"'cuda'": "cuda", "'cuda:0'": "cuda:0", "device('cuda')": torch.device("cuda")}
    return {name: _measured(call, call.device, told) for name, told in spelled.items()}


def _on_the_cpu(call: Call) -> dict[str, Any]:
    """On a machine that has a GPU as well, with something on it."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device=call.device)
    found = {"'cpu'": _measured(call, "cpu", "cpu"), "device('cpu')": _measured(call, "cpu", torch.device("cpu"))}
    del other
    return found


@peak_memory.probe
def peaks(call: Call) -> dict[str, Any]:
    return several({"on_this_device": lambda: _on_this_device(call), "on_the_cpu": lambda: _on_the_cpu(call)})


@peak_memory.probe(machine="two gpus")
def on_the_second_gpu(call: Call) -> dict[str, Any]:
    """The first one, which is the current one, has a peak of its own."""
    other = torch.empty(300 * KIB, dtype=torch.uint8, device="cuda:0")
    found = {"'cuda:1'": _measured(call, "cuda:1", "cuda:1")}
    del other
    return found


@peak_memory.probe(machine="laptop")
def without_a_gpu(call: Call) -> dict[str, Any]:
    return {"'cpu'": _measured(call, "cpu", "cpu")}


ENOUGH = 40  # tries after which a loop that never ends is let go


class _Trial:
    """A `try_batch` that fits up to some size, fails as it is told, and leaves something in the cache each time."""

    def __init__(self, call: Call, fits: int, instead: Exception | None = None, at: int = 0) -> None:
        self.call, self.fits, self.instead, self.at = call, fits, instead, at
        self.sizes: list[float] = []
        self.cached: list[int] = []
        self.met = 0  # how many tries there were when the other error came up
        self.last = ""

    def __call__(self, size: Any) -> str:
        self.sizes.append(size if isinstance(size, (int, float)) else -1)
        gpu = self.call.device.type == "cuda"
        if gpu:
            self.cached.append(torch.cuda.memory_reserved(self.call.device))
        try:
            self._run(size, gpu)
        finally:
            if gpu:  # now, not before: an allocation that fails empties the cache by itself
                scratch = torch.empty(48 << 20, dtype=torch.uint8, device=self.call.device)
                del scratch
        return "what try_batch returns is nobody's business"

    def _run(self, size: Any, gpu: bool) -> None:
        if len(self.sizes) > ENOUGH or 1 <= size <= self.fits:
            return
        if self.instead is not None and size == self.at:
            self.met = len(self.sizes)
            raise self.instead
        try:
            if gpu:
                torch.empty(1 << 50, dtype=torch.uint8, device=self.call.device)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 TiB.")
        except torch.OutOfMemoryError as error:
            self.last = str(error)
            raise


@contextlib.contextmanager
def _no_accelerator_to_empty(call: Call) -> Iterator[None]:
    """On the plain CPU `torch.accelerator.empty_cache()` raises, where `torch.cuda.empty_cache()` does nothing."""
    if call.device.type == "cpu" and hasattr(torch.accelerator, "empty_cache"):
        with mock.patch.object(torch.accelerator, "empty_cache", return_value=None):
            yield
    else:
        yield


def _search(call: Call, start: int, fits: int, instead: Exception | None = None, at: int = 0) -> dict[str, Any]:
    if call.device.type == "cuda":
        torch.cuda.empty_cache()  # of what an earlier search has left
    trial = _Trial(call, fits, instead, at)
    found: dict[str, Any] = {}
    try:
        with _no_accelerator_to_empty(call):
            value = call(trial, start)
        found["value"] = int(value) if isinstance(value, int) and not isinstance(value, bool) else None
        found["shown"] = f"{value!r:.60}"
    except StudentRaised as error:
        expected = instead is not None or not fits or error.evidence.type == "OutOfMemoryError"
        if not (trial.sizes and expected):
            raise  # nothing went wrong but the function itself
        found["raised"] = error.evidence.type
        found["message"] = error.evidence.message
        found["line"] = error.evidence.line
    kept = [later - trial.cached[0] for later in trial.cached[1:]]
    sizes = trial.sizes[: ENOUGH + 1]
    return {**found, "sizes": sizes, "kept": max(kept, default=0), "last": trial.last, "met": trial.met}


def _halving(call: Call) -> dict[str, Any]:
    """(start, what fits): several halvings, odd numbers on the way, the first fits, only 1 fits, 1 is asked for."""
    cases = ((100, 13), (64, 64), (5, 1), (96, 24), (1, 1))
    return {f"start {start}, {fits} fits": _search(call, start, fits) for start, fits in cases}


def _nothing_fits(call: Call) -> dict[str, Any]:
    return {f"start {start}": _search(call, start, 0) for start in (5, 1)}


def _another_error(call: Call) -> dict[str, Any]:
    """A bug in try_batch: at once, after some halvings, and one whose message speaks of memory."""
    access = "CUDA error: an illegal memory access was encountered"
    return {
        "ValueError": _search(call, 32, 4, ValueError("an odd number of sprites"), at=32),
        "RuntimeError": _search(call, 32, 4, RuntimeError("mat1 and mat2 shapes cannot be multiplied"), at=16),
        "RuntimeError about memory": _search(call, 32, 4, RuntimeError(access), at=8),
    }


@largest_batch.probe
def searches(call: Call) -> dict[str, Any]:
    return several(
        {
            "halving": lambda: _halving(call),
            "nothing_fits": lambda: _nothing_fits(call),
            "another_error": lambda: _another_error(call),
        }
    )
