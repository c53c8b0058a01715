"""Detects when the host waits for a real device."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.ops.operators import waits_known
from virtual_cuda.patching import Patch
from virtual_cuda.torch_api.cuda_module import sync_debug_mode

WARNING: Final = "called a synchronizing CUDA operation"
_ALWAYS: Final = ("always", re.compile(WARNING), UserWarning, None, 0)
COPIES: Final = frozenset({"_to_copy", "copy_"})


def base_name(func: Any) -> str:
    """ "add" of aten.add.Tensor."""
    return str(func._schema.name.partition("::")[2])


def kind_of(func: Any) -> str:
    """What the ledger calls the wait that an operator causes."""
    name = base_name(func)
    if name in COPIES:
        return "copy"
    waits = waits_known(func)
    if waits is not None:
        return waits[0]
    bare = name.strip("_")
    return "linalg" if bare.startswith("linalg_") else bare


class KnownWaits:
    """Counts the waits of a device that does not report them: by what is known of each operator on CUDA."""

    def run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """What the operator returns, and how often the host waited for it."""
        return func(*args, **kwargs), _expected(func, args, kwargs)

    def patches(self) -> Iterator[Patch]:
        """What is patched for the counting."""
        yield from ()

    def complain(self) -> None:
        """Report one wait as `torch.cuda.set_sync_debug_mode` asks."""


def _expected(func: Any, args: Any, kwargs: Any) -> int:
    """How often the host would wait for this call on CUDA."""
    waits = waits_known(func)
    if waits is None:
        return 0
    kind, count = waits
    given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **kwargs}
    if kind == "boolean index" and "indices" in given:
        # How many elements a mask selects has to be counted first; a fill needs no count.
        masks = [i for i in given["indices"] if i is not None and i.dtype in (torch.bool, torch.uint8)]
        filled = "values" in given and given["values"].numel() == 1 and not given.get("accumulate")
        return 0 if filled else sum(mask.numel() > 0 for mask in masks)
    return int(count(given) if callable(count) else count)


def _set_filters(filters: Any) -> None:
    # Assigned, not inserted: inserting would make Python forget which warnings it has already shown.
    warnings.filters = filters


class _Tally(threading.local):
    """The warnings of the operator now running in this thread; None while the student's own code runs."""

    count: int | None = None


class CudaWaits(KnownWaits):
    """Counts the warnings of CUDA's sync debug mode, which is on while an operator runs, and only then.

    Off in between, because warnings and warning filters belong to the student. The mode that the student sets is kept
    and honoured.
    """

    def __init__(self) -> None:
        self.tally = _Tally()
        self.students = int(torch.cuda.get_sync_debug_mode())
        self.set_mode: Any = torch._C._cuda_set_sync_debug_mode
        self.binding = torch.zeros(1, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first time it is set, it warns that it is a prototype
            torch.cuda.set_sync_debug_mode(self.students)

    def run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        out: Any = None

        def call(_: Any) -> float:
            nonlocal out
            out = func(*args, **kwargs)
            return 0.0

        theirs = warnings.filters
        overruled = theirs[:1] != [_ALWAYS]  # by a filter the student has put in front
        if overruled:
            _set_filters([_ALWAYS, *theirs])
        before, self.tally.count = self.tally.count, 0
        self.set_mode(1)
        try:
            # C++ keeps warnings back until the outermost binding returns. `apply_` is a binding that calls Python,
            # so they are out when it is done, in autograd's threads too.
            self.binding.apply_(call)
            count = self.tally.count
        finally:
            self.set_mode(0)
            self.tally.count = before
            if overruled:
                _set_filters(theirs)
        return out, count

    def complain(self) -> None:
        """Report one wait in the mode that the student has set."""
        if self.students == 2:
            raise RuntimeError(WARNING)
        if self.students == 1:
            warnings.warn(WARNING, UserWarning, stacklevel=2)

    def shown(self, original: Any) -> Any:
        def show(message: Any) -> None:
            if self.tally.count is not None and WARNING in str(message.message):
                self.tally.count += 1
            else:
                original(message)

        return show

    def choose(self, mode: Any) -> None:
        self.students = sync_debug_mode(mode)

    def patches(self) -> Iterator[Patch]:
        yield warnings, "filters", [_ALWAYS, *warnings.filters]
        # Not `showwarning`: that one is replaced by `catch_warnings(record=True)`, which students use.
        yield warnings, "_showwarnmsg", self.shown(vars(warnings)["_showwarnmsg"])
        yield torch.cuda, "set_sync_debug_mode", self.choose
        yield torch.cuda, "get_sync_debug_mode", lambda: self.students


def explicit_waits(kind: str) -> Iterator[tuple[Any, str, str]]:
    """The functions that tell the host to wait: owner, attribute, and what the ledger calls the wait."""
    yield torch.accelerator, "synchronize", "synchronize"
    if kind == "cuda":
        yield torch.cuda, "synchronize", "synchronize"
        yield torch.cuda.streams.Event, "synchronize", "event.synchronize"
        yield torch.cuda.streams.Stream, "synchronize", "stream.synchronize"
    elif kind == "mps":
        yield torch.mps, "synchronize", "synchronize"
        yield torch.mps.event.Event, "synchronize", "event.synchronize"
    else:
        yield torch.cpu, "synchronize", "synchronize"
