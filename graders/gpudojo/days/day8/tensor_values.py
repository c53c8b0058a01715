"""Tensors as evidence: small ones, and what students' functions return."""

from __future__ import annotations

from typing import Any

from gpudojo.grading.call import array_of, torch
from gpudojo.model.evidence import Array, Case, Fact


class Values(Case, frozen=True):
    """A small tensor: reading it as Python numbers is the fastest way off a device."""

    dtype: str
    shape: list[int]
    values: Fact  # None for a tensor without values, such as one on "meta"


def values_of(tensor: Any) -> Values:
    """A tensor's dtype, shape and numbers; None for numbers that cannot be read.

    Reading them is a copy to the host.
    """
    try:
        numbers = tensor.tolist()
    except (RuntimeError, TypeError):
        numbers = None
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Values(dtype, list(tensor.shape), numbers)


class ReturnedTensor(Case, frozen=True):
    """What a function returned: a tensor, or only the type of anything else."""

    kind: str
    device: str  # of a tensor; else empty
    dtype: str
    value: Array | None


def describe_returned(value: Any) -> ReturnedTensor:
    """What a function returned, as evidence: of anything but a tensor, its type alone.

    Reading values of a device is a copy to the host, which the ledger records. Raises RuntimeError
    for a tensor that cannot be read.
    """
    kind = type(value).__name__
    if not isinstance(value, torch.Tensor):
        return ReturnedTensor(kind, "", "", None)
    dtype = str(value.dtype).removeprefix("torch.")
    return ReturnedTensor(kind, str(value.device), dtype, array_of(value))
