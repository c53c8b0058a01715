"""Values of small tensors of a device without values.

The inner tensor of each device tensor is one of "meta" then. Where the values of a small one are
known all the same (a length, a mask that was made on the host, a number of steps), its storage has
them as an attribute: all views share them. Values may be assumed: what is computed from a tensor
that has none is computed from zeros, so that a loss which is read as 0 is finite and below 1.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.no_values import is_printing, lacks_values, note_read, shape_only

# Up to so many bytes of whole numbers and truth values are known, and so many other elements.
_MOST_BYTES: Final = 1 << 20
FEW: Final = 1024
_NAME: Final = "_virtual_known"  # the attribute of a storage


class Certainty(enum.IntEnum):
    """How far the values of a tensor can be trusted."""

    CERTAIN = 0
    DERIVED = 1  # from certain values and from zeros in the place of unknown ones
    UNKNOWN = 2  # they are zeros, or made from nothing else


class _Known(NamedTuple):
    """What is known of a storage."""

    flat: torch.Tensor  # of bytes, on the host
    certainty: Certainty


def is_small(tensor: torch.Tensor) -> bool:
    """True for a tensor whose values are worth knowing.

    It is strided, and has few elements, or at most 1 MiB of whole numbers or truth values.
    """
    count = tensor.numel()
    if count <= FEW:
        return tensor.layout is torch.strided
    if tensor.is_floating_point() or tensor.is_complex() or tensor.layout is not torch.strided:
        return False
    return count * tensor.element_size() <= _MOST_BYTES


def known_values(inner: torch.Tensor) -> tuple[torch.Tensor, Certainty] | None:
    """The values of an inner tensor, and how certain they are; None if nothing is known.

    What is written to them is written for all tensors that share the storage.
    """
    if inner.layout is not torch.strided:
        return None
    storage = inner.untyped_storage()
    known: _Known | None = getattr(storage, _NAME, None)
    if known is None or known.flat.numel() != storage.nbytes():
        return None
    values = known.flat.view(inner.dtype)
    return values.as_strided(inner.shape, inner.stride(), inner.storage_offset()), known.certainty


def certain_values(inner: torch.Tensor) -> torch.Tensor | None:
    """The values of an inner tensor; None if they are not known or only assumed.

    While a tensor is made into a text, assumed ones are given, too.
    """
    known = known_values(inner)
    if known is None:
        return None
    values, certainty = known
    # What is printed for unknown values are zeros, and they are laid out as such.
    return values if certainty is Certainty.CERTAIN or is_printing() else None


def read_values(inner: torch.Tensor) -> torch.Tensor:
    """The values that a program reads of an inner tensor: zeros if none are known.

    Unless they are certain, the read is noted for the report, with the line of the program.
    """
    known = known_values(inner)
    if known is None:
        note_read()
        return torch.zeros(inner.shape, dtype=inner.dtype)
    values, certainty = known
    if certainty is not Certainty.CERTAIN:
        note_read(is_zero=not values.any())
    return values


def learn_values(
    inner: torch.Tensor, values: torch.Tensor, certainty: Certainty = Certainty.CERTAIN
) -> None:
    """Note the values of an inner tensor, for all tensors that share its storage.

    Nothing is noted where it is not on "meta", is large or is a part of its storage, or where
    `values` have another shape or dtype.
    """
    if not inner.is_meta or not is_small(inner):
        return
    if values.shape != inner.shape or values.dtype is not inner.dtype:
        return
    storage = inner.untyped_storage()
    if inner.numel() * inner.element_size() != storage.nbytes():
        return
    laid_out = torch.empty_strided(inner.shape, inner.stride(), dtype=inner.dtype)
    laid_out.copy_(values)
    flat = torch.empty(0, dtype=torch.uint8).set_(laid_out.untyped_storage())
    setattr(storage, _NAME, _Known(flat, certainty))


def copy_known_values(inner: torch.Tensor, copied: torch.Tensor) -> None:
    """Note for a copy of an inner tensor what is known of that."""
    known = known_values(inner)
    if known is not None:
        learn_values(copied, *known)


def learn_from_host(inner: torch.Tensor, tensor: torch.Tensor) -> None:
    """Note the values of an inner tensor that is a copy of a tensor of the host, if it has any."""
    if is_small(inner) and tensor.layout is torch.strided and not lacks_values(tensor):
        learn_values(inner, tensor.detach().to(inner.dtype))


def assume_zeros(inner: torch.Tensor) -> tuple[torch.Tensor, Certainty]:
    """Zeros as the values of an inner tensor that are unknown, and that certainty.

    A small tensor that is all of its storage has these values from then on.
    """
    zeros = torch.zeros(inner.shape, dtype=inner.dtype)
    learn_values(inner, zeros, Certainty.UNKNOWN)
    return known_values(inner) or (zeros, Certainty.UNKNOWN)


def doubt_values(inner: torch.Tensor) -> None:
    """Note that some values of an inner tensor are made from zeros from now on."""
    storage = inner.untyped_storage()
    known: _Known | None = getattr(storage, _NAME, None)
    if known is not None and known.certainty is Certainty.CERTAIN:
        setattr(storage, _NAME, known._replace(certainty=Certainty.DERIVED))


def forget_known_values(inner: torch.Tensor) -> None:
    """Note that nothing is known of an inner tensor any more, nor of others of its storage."""
    if inner.layout is torch.strided and hasattr(inner.untyped_storage(), _NAME):
        delattr(inner.untyped_storage(), _NAME)


def shape_with_values(tensor: Any) -> Any:
    """A tensor of "meta" as one of the host, with its values if it is small; others unchanged."""
    inner = shape_only(tensor)
    if isinstance(tensor, torch.Tensor) and inner is not tensor:
        learn_from_host(inner, tensor)
    return inner
