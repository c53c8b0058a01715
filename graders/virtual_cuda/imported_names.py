"""Applies patches to what a file has imported by name, such as `from time import perf_counter`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from virtual_cuda.identity import identity
from virtual_cuda.patching import originals_in_force

DEEPEST: Final = 3  # how far lists in lists are searched


class _ImportedFunction(NamedTuple):
    """A function, and where a file has it: under a name, or in a list or dict of its."""

    holder: Any  # a dict or a list
    key: Any
    function: Any


@contextlib.contextmanager
def patch_imported_names(names: dict[str, Any]) -> Iterator[None]:
    """Apply the patches in force to the names of a file, for the length of a `with` block.

    The file was run before the device was opened. So `from torch.cuda import is_available` at its
    top, or a table of such functions, holds the original. Afterwards the names have their values
    again.
    """
    entries = list(_functions_in(names))
    replacements = originals_in_force({identity(entry.function) for entry in entries})
    changed = []
    if replacements:
        changed = [entry for entry in entries if identity(entry.function) in replacements]
    for entry in changed:
        entry.holder[entry.key] = replacements[identity(entry.function)]
    try:
        yield
    finally:
        for entry in changed:
            with contextlib.suppress(LookupError):  # the student's code may have changed it since
                if entry.holder[entry.key] is replacements[identity(entry.function)]:
                    entry.holder[entry.key] = entry.function


def _functions_in(holder: Any, depth: int = 0) -> Iterator[_ImportedFunction]:
    """Every function among a file's names, and in the lists and dicts among them.

    `holder` is such a list or dict, `depth` how many others it lies in.
    """
    items: Iterable[tuple[Any, Any]]
    if type(holder) is dict:
        items = holder.items()
    else:
        items = enumerate(holder)
    for key, value in items:
        is_holder = type(value) is dict or type(value) is list
        if is_holder and depth < DEEPEST and key != "__builtins__":
            yield from _functions_in(value, depth + 1)
        elif callable(value):  # not None, which a file has of its own
            yield _ImportedFunction(holder, key, value)
