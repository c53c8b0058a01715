"""Small tensors as evidence."""

from __future__ import annotations

from typing import Any

from gpudojo.model.evidence import Case, Fact


class Values(Case, frozen=True):
    """A small tensor: reading it as Python numbers is the fastest way off a device."""

    dtype: str
    shape: list[int]
    values: Fact  # None for a tensor without values, such as one on "meta"


def values_of(tensor: Any) -> Values:
    """A tensor's dtype, shape and numbers; no numbers where it cannot be read."""
    try:
        numbers = tensor.tolist()
    except (RuntimeError, TypeError):
        numbers = None
    return Values(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), numbers)
