"""Compares a batch with what it became, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gpudojo.days.day8.tensor_values import Values, values_of
from gpudojo.grading.call import torch
from gpudojo.model.errors import without_addresses
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import with_article


class BatchPart(Case, frozen=True):
    """What one part of a batch became."""

    path: str  # what a student writes to get there
    role: str  # what it was: "tensor", "container" or "other"
    holder: str  # the container that it was in, in words; "" for the whole batch
    words: str  # what it is now: "a tensor", "a named tuple Sprite", "3"
    # A tensor in the same memory; a container of the same type, with the same keys or as many
    # items; anything else that is the same or equal.
    same: bool
    device: str | None = None  # of a tensor
    values: Values | None = None

    @property
    def is_kept(self) -> bool:
        """True for what is still a tensor, a container of the same form, or the same thing."""
        if self.role == "tensor":
            return self.words == "a tensor"
        return self.same


def describe_parts(
    before: Any, after: Any, path: str = "batch", holder: str = ""
) -> Iterator[BatchPart]:
    """Yield what each part of a batch became, containers before their items.

    The items are yielded only if the container has as many as before.
    `path` is how a student would write this part, and `holder` the container around it, in words.
    Raises what comparing or reading a student's own class raises.
    """
    role = "other"
    device = None
    values = None
    if isinstance(before, torch.Tensor):
        role = "tensor"
        same = False
        if isinstance(after, torch.Tensor):
            same = _share_memory(before, after)
            device = str(after.device)
            values = values_of(after)
    elif isinstance(before, (list, tuple, dict)):
        role = "container"
        same = _have_same_form(before, after)
    else:
        equal = type(before) is type(after) and bool(before == after)
        same = before is after or equal
    yield BatchPart(
        path=path,
        role=role,
        holder=holder,
        words=_in_words(after),
        same=same,
        device=device,
        values=values,
    )
    if role == "container":
        yield from _describe_items(before, after, path)


def _describe_items(before: Any, after: Any, path: str) -> Iterator[BatchPart]:
    """Yield what the items of a container became, unless their number is another one.

    `path` is how a student would write the container. A tuple that became a list is wrong, but its
    items can still be judged.
    """
    items_before = _items_of(before, path)
    items_after = _items_of(after, path)
    if len(items_before) != len(items_after):
        return
    holder = _in_words(before)
    afterwards = zip(items_before.items(), items_after.values(), strict=True)
    for (at, item), in_order in afterwards:
        after_at = items_after.get(at, in_order)
        yield from describe_parts(item, after_at, at, holder)


def _items_of(thing: Any, path: str) -> dict[str, Any]:
    """The items of a container, by the path that a student would write to get there.

    `path` is that of the container. What is no container has none.
    """
    values = thing
    if isinstance(thing, dict):
        keys = [f"[{key!r}]" for key in thing]
        values = thing.values()
    elif _is_named_tuple(thing):
        keys = [f".{field}" for field in thing._fields]
    elif isinstance(thing, (list, tuple)):
        keys = [f"[{index}]" for index in range(len(thing))]
    else:
        return {}
    items = zip(keys, values, strict=False)
    return {f"{path}{key}": value for key, value in items}


def copy_containers(thing: Any) -> Any:
    """A batch with new containers of the same types, and the same tensors and other things in them.

    It stays as it is where a solution writes into the batch.
    """
    if isinstance(thing, dict):
        return {key: copy_containers(item) for key, item in thing.items()}
    if _is_named_tuple(thing):
        return thing._make(copy_containers(item) for item in thing)
    if isinstance(thing, (list, tuple)):
        return type(thing)(copy_containers(item) for item in thing)
    return thing


def _have_same_form(before: Any, after: Any) -> bool:
    """True if two containers have one type, and the same keys or as many items."""
    if isinstance(before, dict):
        if not isinstance(after, dict):
            return False
        return before.keys() == after.keys()
    if type(before) is not type(after):
        return False
    return len(before) == len(after)


def _is_named_tuple(thing: Any) -> bool:
    return isinstance(thing, tuple) and hasattr(thing, "_fields")


def _in_words(thing: Any) -> str:
    """A thing in words for people.

    Only basic types are printed as they print themselves: other code may be the student's.
    """
    if thing is None or isinstance(thing, (str, bytes, bool, int, float, complex)):
        return without_addresses(repr(thing))[:60]
    if isinstance(thing, torch.Tensor):
        return "a tensor"
    if _is_named_tuple(thing):
        return f"a named tuple {type(thing).__name__}"
    if isinstance(thing, dict):
        return "a dict"
    return with_article(type(thing).__name__)


def _share_memory(one: Any, other: Any) -> bool:
    """True if two tensors are the same, or views of the same memory."""
    if one is other:
        return True
    if one.device != other.device:
        return False
    one_storage = one.untyped_storage()
    other_storage = other.untyped_storage()
    return bool(one_storage.data_ptr() == other_storage.data_ptr())


class PartState(NamedTuple):
    """One part of a batch at some time."""

    thing: Any
    path: str
    device: str  # of a tensor
    values: Values | None  # of a tensor


def state_of_parts(thing: Any, path: str = "batch") -> list[PartState]:
    """Every part of a batch as it is now, containers before their items; `path` is the batch's."""
    if isinstance(thing, torch.Tensor):
        return [PartState(thing, path, str(thing.device), values_of(thing))]
    states = [PartState(thing, path, "", None)]
    for at, item in _items_of(thing, path).items():
        states += state_of_parts(item, at)
    return states


def first_changed_path(before: list[PartState], now: list[PartState]) -> str | None:
    """The path of the first part that is not as it was; None where all are."""
    for old, new in zip(before, now, strict=False):
        if old.thing is not new.thing or old[1:] != new[1:]:
            return old.path
    if len(before) == len(now):
        return None
    return "batch"
