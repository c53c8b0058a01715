"""Compares a batch with what it became, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gpudojo.days.day8.tensor_values import Values, values_of
from gpudojo.grading.call import torch
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import with_article


class BatchPlace(Case, frozen=True, kw_only=True):
    """One part of a batch, and what it became."""

    path: str
    role: str  # "tensor", "container" or "other"
    was: str
    found: str
    fits: bool
    alike: bool = True  # whether a container kept its type
    device: str | None = None
    value: Values | None = None
    copied: bool = False
    text: str = ""
    wanted: str = ""


def kind_of(thing: Any) -> str:
    """A thing's kind: "a tensor", "a tuple", "a named tuple Sprite", …"""
    if isinstance(thing, torch.Tensor):
        return "a tensor"
    if is_named_tuple(thing):
        return f"a named tuple {type(thing).__name__}"
    return with_article(type(thing).__name__)


def is_named_tuple(thing: Any) -> bool:
    return isinstance(thing, tuple) and hasattr(thing, "_fields")


def parts_of(path: str, thing: Any) -> dict[str, Any]:
    """The items of a container, by the path that a student would write to get there."""
    if isinstance(thing, dict):
        return {f"{path}[{key!r}]": value for key, value in thing.items()}
    if is_named_tuple(thing):
        fields = zip(thing._fields, thing, strict=False)
        return {f"{path}.{name}": value for name, value in fields}
    if isinstance(thing, (list, tuple)):
        return {f"{path}[{index}]": value for index, value in enumerate(thing)}
    return {}


def compare_batches(before: Any, after: Any, path: str = "batch") -> Iterator[BatchPlace]:
    """Yield each part of a batch beside what it became, containers before their items.

    `path` is what a student would write to get there.
    """
    if isinstance(before, torch.Tensor):
        yield _compare_tensors(before, after, path)
    elif isinstance(before, (list, tuple, dict)):
        yield from _compare_containers(before, after, path)
    else:
        yield _compare_others(before, after, path)


def _compare_others(before: Any, after: Any, path: str) -> BatchPlace:
    """Something that is no tensor and no container, beside what it became."""
    equal = type(before) is type(after) and bool(before == after)
    return BatchPlace(
        path=path,
        role="other",
        was=kind_of(before),
        found=kind_of(after),
        fits=before is after or equal,
        text=_in_words(after),
        wanted=_in_words(before),
    )


def _compare_tensors(before: Any, after: Any, path: str) -> BatchPlace:
    """One tensor of a batch beside what it became."""
    was = kind_of(before)
    found = kind_of(after)
    if not isinstance(after, torch.Tensor):
        return BatchPlace(path=path, role="tensor", was=was, found=found, fits=False)
    return BatchPlace(
        path=path,
        role="tensor",
        was=was,
        found=found,
        fits=True,
        device=str(after.device),
        value=values_of(after),
        copied=not _share_memory(before, after),
    )


def _compare_containers(before: Any, after: Any, path: str) -> Iterator[BatchPlace]:
    """The container itself, then what is in it."""
    parts_before = parts_of(path, before)
    parts_after = parts_of(path, after)
    same_type = type(after) is type(before)
    same_keys = True
    if isinstance(before, dict):
        same_type = isinstance(after, dict)
        same_keys = parts_before.keys() == parts_after.keys()
    same_length = len(parts_before) == len(parts_after)
    yield BatchPlace(
        path=path,
        role="container",
        was=kind_of(before),
        found=kind_of(after),
        fits=same_length and same_keys,
        alike=same_type,
    )
    if not same_length:
        return
    for (at, part), in_order in zip(parts_before.items(), parts_after.values(), strict=True):
        # A tuple that became a list is wrong, but its items can still be judged.
        yield from compare_batches(part, parts_after.get(at, in_order), at)


def _in_words(thing: Any) -> str:
    """A thing in words for people.

    Only basic types are printed as they print themselves: other code may be the student's.
    """
    if thing is None or isinstance(thing, (str, bytes, bool, int, float, complex)):
        return repr(thing)[:60]
    return kind_of(thing)


def _share_memory(one: Any, other: Any) -> bool:
    """True if two tensors are the same, or views of the same memory."""
    if one is other:
        return True
    if one.device != other.device:
        return False
    return _address_of(one) == _address_of(other)


def _address_of(tensor: Any) -> int:
    """The address of a tensor's memory, from its beginning."""
    address: int = tensor.untyped_storage().data_ptr()
    return address


class PartState(NamedTuple):
    """One part of a batch at some time."""

    path: str
    thing: Any
    device: str  # of a tensor
    values: Values | None  # of a tensor

    def is_as_before(self, before: PartState) -> bool:
        """True if it is the same thing, at the same path, with the same values."""
        if self.thing is not before.thing:
            return False
        now = (self.path, self.device, self.values)
        return now == (before.path, before.device, before.values)


def state_of_parts(thing: Any, path: str = "batch") -> list[PartState]:
    """Every part of a batch as it is now."""
    if isinstance(thing, torch.Tensor):
        return [PartState(path, thing, str(thing.device), values_of(thing))]
    states = [PartState(path, thing, "", None)]
    for at, part in parts_of(path, thing).items():
        states += state_of_parts(part, at)
    return states


def first_changed_path(before: list[PartState], now: list[PartState]) -> str | None:
    """The path of the first part that is not as it was; None where all are."""
    for old, new in zip(before, now, strict=False):
        if not new.is_as_before(old):
            return old.path
    return None if len(before) == len(now) else "batch"
