"""What became of a batch? Its places one by one: what was there, what is there now, and where the tensors are."""

from __future__ import annotations

from typing import Any

from graders.curriculum.wording import called
from graders.probes.late import torch


def kind_of(thing: Any) -> str:
    """In words: "a tensor", "a tuple", "a named tuple Sprite", …"""
    if isinstance(thing, torch.Tensor):
        return "a tensor"
    if thing is None:
        return "None"
    return f"a named tuple {type(thing).__name__}" if is_named(thing) else called(type(thing).__name__)


def is_named(thing: Any) -> bool:
    return isinstance(thing, tuple) and hasattr(thing, "_fields")


def parts(path: str, thing: Any) -> list[tuple[str, Any]]:
    """What a structure holds, each with the path a student would write to get there."""
    if isinstance(thing, dict):
        return [(f"{path}[{key!r}]", value) for key, value in thing.items()]
    if is_named(thing):
        return [(f"{path}.{name}", value) for name, value in zip(thing._fields, thing, strict=False)]
    if isinstance(thing, (list, tuple)):
        return [(f"{path}[{i}]", value) for i, value in enumerate(thing)]
    return []


def places(given: Any, found: Any, path: str = "batch") -> list[dict[str, Any]]:
    """A structure beside what it became, flattened: tensors, containers, and other things."""
    place: dict[str, Any] = {"path": path, "was": kind_of(given), "found": kind_of(found)}
    if isinstance(given, torch.Tensor):
        place |= {"role": "tensor", "fits": isinstance(found, torch.Tensor)}
        if place["fits"]:
            place |= {"device": str(found.device), "value": values(found), "copied": not _shared(given, found)}
        return [place]
    if not isinstance(given, (list, tuple, dict)):
        same = given is found or (type(given) is type(found) and bool(given == found))
        return [place | {"role": "other", "fits": same, "text": _shown(found), "wanted": _shown(given)}]
    inside, became = parts(path, given), dict(parts(path, found))
    alike = isinstance(found, dict) if isinstance(given, dict) else type(found) is type(given)
    place |= {"role": "container", "alike": alike, "fits": len(became) == len(inside)}
    by_order = list(became.values())
    flat = [place]
    if place["fits"]:
        for i, (at, thing) in enumerate(inside):
            # A tuple that became a list is wrong, but what it holds can still be looked at.
            flat += places(thing, became[at] if at in became else by_order[i], at)
        place["fits"] = not isinstance(given, dict) or {at for at, _ in inside} == became.keys()
    return flat


def _shown(thing: Any) -> str:
    plain = thing is None or isinstance(thing, (str, bytes, bool, int, float, complex))
    return repr(thing)[:60] if plain else kind_of(thing)  # the text of other things is not ours to ask for


def _shared(given: Any, found: Any) -> bool:
    """Whether two tensors are one memory."""
    if given is found:
        return True
    if given.device != found.device:
        return False
    return bool(given.untyped_storage().data_ptr() == found.untyped_storage().data_ptr())


def values(tensor: Any) -> list[Any]:
    """Dtype, shape and values: as numbers, because that is the fastest way off a device for a few of them."""
    about = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    try:
        return [*about, tensor.tolist()]
    except (RuntimeError, TypeError):  # a tensor without values, such as one on "meta"
        return [*about, None]


class Kept:
    """A structure as it was, to see later what was done to it."""

    def __init__(self, thing: Any, path: str = "batch") -> None:
        self.thing, self.path = thing, path
        self.inside = [Kept(value, at) for at, value in parts(path, thing)]
        is_tensor = isinstance(thing, torch.Tensor)
        self.state = (str(thing.device), values(thing)) if is_tensor else None

    def changed(self) -> str | None:
        """The path of the first place that is not as it was."""
        if self.state is not None:
            return None if (str(self.thing.device), values(self.thing)) == self.state else self.path
        now = parts(self.path, self.thing)
        if [at for at, _ in now] != [kept.path for kept in self.inside]:
            return self.path
        for kept, (_, value) in zip(self.inside, now, strict=True):
            changed = kept.path if value is not kept.thing else kept.changed()
            if changed is not None:
                return changed
        return None
