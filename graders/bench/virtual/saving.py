"""How are device tensors saved and loaded? As torch does it: the storage carries its location, `map_location` decides."""

from __future__ import annotations

import collections
import weakref
from typing import Any, Final

import torch

from graders.bench.virtual import transfers
from graders.bench.virtual.dispatch import allocate
from graders.bench.virtual.places import Block, now, place_of
from graders.bench.virtual.tensor import Parameter, Tensor, wrap

# storage -> where it lives; weak, because a storage belongs to whoever saved or loaded it
_saved_from: Final[dict[int, tuple[Any, str]]] = {}
_loaded_to: Final[dict[int, tuple[Any, Block]]] = {}


def _watch(table: dict[int, Any], storage: Any, value: Any) -> None:
    key = storage._cdata
    table[key] = (weakref.ref(storage, lambda _: table.pop(key, None)), value)


def _reduce(self: Any, protocol: Any) -> Any:
    storage = self._inner.untyped_storage()
    _watch(_saved_from, storage, self._block.place.label)
    if isinstance(self, Parameter):
        return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, collections.OrderedDict())
    plain = self._inner.detach()
    function, given = torch.Tensor._reduce_ex_internal(plain, protocol)[:2]  # type: ignore[attr-defined]
    if self.requires_grad:
        given = tuple(self.requires_grad if value is False else value for value in given)
    return function, given


def _tag(storage: Any) -> str | None:
    """Where torch.save says a storage lives; it is copied to the host to be written."""
    entry = _saved_from.get(getattr(storage, "_cdata", 0))
    if entry is None:
        return None
    transfers.record("to_host", _bytes(storage), False, False, entry[1], "cpu")
    return entry[1]


def _bytes(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _restore(storage: Any, location: str) -> Any:
    """torch.load found a storage that belongs on the device."""
    if now.gpu is None or not location.startswith("cuda"):
        return None
    place = place_of(torch.device(location))
    assert place is not None
    untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    block = allocate(place, untyped.nbytes())
    _watch(_loaded_to, untyped, block)
    if untyped.nbytes():
        transfers.record("to_device", _bytes(untyped), False, False, "cpu", place.label)
    return storage


def rebuild_tensor(original: Any) -> Any:
    def rebuild(storage: Any, storage_offset: Any, size: Any, stride: Any) -> Any:
        plain = original(storage, storage_offset, size, stride)
        entry = _loaded_to.get(plain.untyped_storage()._cdata)
        return plain if entry is None else wrap(plain, entry[1])

    return rebuild


torch.serialization.register_package(5, _tag, _restore)
Tensor.__reduce_ex__ = _reduce  # type: ignore[method-assign,assignment]


def patches() -> list[tuple[Any, str, Any]]:
    return [(torch._utils, "_rebuild_tensor", rebuild_tensor(torch._utils._rebuild_tensor))]
