"""Replaces attributes of torch for a while and restores them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

from virtual_cuda.errors import AlreadyOpen

Patch = tuple[Any, str, Any]  # owner, attribute, value


class Replaced(NamedTuple):
    """One patch in force."""

    owner: Any
    name: str
    before: Any
    put: Any


DEEPEST: Final = 3  # how far lists in lists are looked through
_MISSING: Final = object()
_in_force: Final[dict[int, list[Replaced]]] = {}  # by identity: what `patch` has replaced and nobody has put back yet


def patch(patches: Iterable[Patch], undo: contextlib.ExitStack) -> list[Replaced]:
    """Replace attributes; `undo` puts them back, in the opposite order. Gives what was there before, for `aside`."""
    done: list[Replaced] = []
    _in_force[id(done)] = done
    undo.callback(_in_force.pop, id(done))
    undo.callback(_put_back, done)
    for owner, name, value in patches:
        # vars() and not getattr: an attribute that a class inherits has to be inherited again afterwards.
        done.append(Replaced(owner, name, vars(owner).get(name, _MISSING), value))
        setattr(owner, name, value)
    return done


@contextlib.contextmanager
def aside(done: list[Replaced]) -> Iterator[None]:
    """Everything as it was before `patch`, for a moment."""
    now = [(one.owner, one.name, vars(one.owner)[one.name]) for one in done if one.name in vars(one.owner)]
    _put_back(done)
    try:
        yield
    finally:
        seen = set()
        for i, (owner, name, _, put) in enumerate(done):
            if (id(owner), name) not in seen:  # what was changed meanwhile is what there is to be put back
                seen.add((id(owner), name))
                done[i] = Replaced(owner, name, vars(owner).get(name, _MISSING), put)
        for owner, name, value in now:
            setattr(owner, name, value)


@contextlib.contextmanager
def patch_imported_names(names: dict[str, Any]) -> Iterator[None]:
    """What a file took out of a module by name, before it was replaced there, is replaced in the file's names as well.

    `from torch.cuda import is_available` at the top of a file that ran before the bench was opened, or a table of
    such functions.
    """
    held = list(_held(names))
    own = {id(value) for _, _, value in held}
    replaced = {
        id(before): vars(owner)[name]
        for done in _in_force.values()
        for owner, name, before, _ in done
        if id(before) in own and isinstance(owner, ModuleType)
    }
    taken = [(holder, key, value) for holder, key, value in held if id(value) in replaced] if replaced else []
    for holder, key, value in taken:
        holder[key] = replaced[id(value)]
    try:
        yield
    finally:
        for holder, key, value in taken:
            with contextlib.suppress(LookupError):  # the student's code may have changed it since
                if holder[key] is replaced[id(value)]:
                    holder[key] = value


def _held(holder: Any, depth: int = 0) -> Iterator[tuple[Any, Any, Any]]:
    """Every function in a file's names, and in the lists and dicts among them, each with its holder and its place."""
    for key, value in holder.items() if type(holder) is dict else enumerate(holder):
        if type(value) is dict or type(value) is list:
            if depth < DEEPEST and key != "__builtins__":
                yield from _held(value, depth + 1)
        elif callable(value):  # not None, which a file has of its own
            yield holder, key, value


def _put_back(done: list[Replaced]) -> None:
    for owner, name, before, put in reversed(done):
        if before is not _MISSING:
            setattr(owner, name, before)
        elif vars(owner).get(name) is put:  # or else somebody has written over it, and whoever looks should see that
            delattr(owner, name)


class _Claimed:
    """The one bench that is open in this process."""

    bench: str | None = None


_claimed: Final = _Claimed()


@contextlib.contextmanager
def claim(bench: str) -> Iterator[None]:
    """Let no other bench open while this one is: two recorders would each see half of what happens."""
    if _claimed.bench is not None:
        raise AlreadyOpen(_claimed.bench)
    _claimed.bench = bench
    try:
        yield
    finally:
        _claimed.bench = None
