"""Keeps the inside of device tensors out of sight of a program that looks around."""

from __future__ import annotations

from typing import Any, Final

import torch


class Hidden:
    """Holds one value that only `reveal` can read.

    It is used where a program may look: in the attributes of graphs and of errors.
    """

    __slots__ = ("value",)


_set_value = vars(Hidden)["value"].__set__
reveal = vars(Hidden)["value"].__get__
del Hidden.value  # type: ignore[attr-defined]


def conceal(value: Any) -> Hidden:
    """An object that holds this value; `reveal` gives it back."""
    holder = Hidden()
    _set_value(holder, value)
    return holder


# The `__dict__` of a tensor, also where a class hides that attribute.
attributes_of: Final = vars(torch.Tensor)["__dict__"].__get__


def hidden_attribute(value: Any, name: str, default: Any = None) -> Any:
    """The attribute of this name inside a device tensor; `default` for everything else.

    The value's own `__getattr__` is not called.
    """
    if not issubclass(type(value), torch.Tensor):
        return default
    return attributes_of(value).get(name, default)
