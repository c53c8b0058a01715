"""How are sparse tensors held? Like any other: a shell that says `cuda:0` around the CPU's sparse tensor.

The shell is a class of its own, so that C++ hands every operator with a sparse argument to the dispatcher here
and the usual one never meets a tensor without strides. For C++ each is a COO tensor: a shell of a compressed
layout cannot be made, so Python answers what layout it is.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from graders.bench.virtual import kernels, placement, syncs
from graders.bench.virtual.dispatch import Unwrapped, allocate, shut, special, wrap_output, write
from graders.bench.virtual.places import CPU, Block, Place, place_of
from graders.bench.virtual.rescue import rescue
from graders.bench.virtual.tensor import AUTOCAST, Tensor
from graders.bench.virtual.transfers import record

aten: Final = torch.ops.aten
_make: Final = torch.Tensor._make_wrapper_subclass
_COLUMNS: Final = (torch.sparse_csc, torch.sparse_bsc)


class SparseTensor(Tensor):
    """A sparse tensor on a virtual device."""

    _parts: dict[int, Block]  # by storage: the blocks of its indices and values

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(func, args, kwargs or {})

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return self._inner.layout

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return bool(self._inner.is_sparse)

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        return bool(self._inner.is_sparse_csr)

    def to_sparse(self, *args: Any, **kwargs: Any) -> Any:
        if self._inner.layout is torch.sparse_coo:
            return super().to_sparse(*args, **kwargs)
        return run(torch.Tensor.to_sparse, (self, *args), kwargs)  # C++ takes it for a COO tensor and would do nothing

    def to_sparse_coo(self) -> Any:
        return self.to_sparse()

    def new(self, *args: Any, device: Any = None) -> Any:
        """The constructor of old, which `SparseAdam` uses."""
        if not args:
            return wrap(self._inner.new(), self._block.place)[0]
        if len(args) == 1 or isinstance(args[0], int):
            return wrap(self._inner.new(*args), self._block.place)[0]
        return torch.sparse_coo_tensor(*args, dtype=self.dtype, device=self.device)

    def __copy__(self) -> Any:
        return wrap(self._inner, self._block.place, self._parts)[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]


SparseTensor.__name__, SparseTensor.__module__ = "Tensor", "torch"


def parts(value: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a sparse tensor is made of."""
    if value.layout is torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in _COLUMNS:
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value.crow_indices(), value.col_indices(), value.values()]


def _account(shell: Any, place: Place, known: dict[int, Block]) -> int:
    """Give each part its block: the one it shares, or a new one. Says how many bytes are new."""
    held: dict[int, Block] = {}
    fresh = 0
    for part in parts(shell._inner):
        storage = part.untyped_storage()
        block = known.get(storage._cdata)
        if block is None:
            fresh += storage.nbytes()
            block = allocate(place, storage.nbytes())
        held[storage._cdata] = shell._block = block
    shell._parts = held
    return fresh


def wrap(value: torch.Tensor, place: Place, known: dict[int, Block] | None = None) -> tuple[Any, int]:
    """A device tensor around a sparse one, and the bytes it newly takes."""
    shape, layout, keys = value.shape, torch.sparse_coo, AUTOCAST
    shell = _make(
        SparseTensor, shape, None, None, None, value.dtype, layout, place.lazy, False, False, None, False, False, keys
    )
    shell._inner = value
    return shell, _account(shell, place, known or {})


class _Opened(Unwrapped):
    """Arguments of which some are sparse."""

    __slots__ = ()

    def open(self, value: Any) -> Any:
        if type(value) is not SparseTensor:
            return super().open(value)
        place = value._block.place
        self.place = self.place or place
        if place not in self.places:
            self.places.append(place)
        self.back.setdefault(id(value._inner), value)
        self.blocks.update(value._parts)
        return value._inner

    def close(self, value: Any, place: Place | None) -> tuple[Any, int]:
        if not isinstance(value, torch.Tensor):
            return super().close(value, place)
        known = self.back.get(id(value))
        if type(known) is SparseTensor:
            return known, _account(known, known._block.place, self.blocks)
        if known is not None or place is None:
            return super().close(value, place)
        if value.layout is torch.strided:
            return wrap_output(value, place, self.blocks)
        return wrap(value, place, self.blocks)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Any operator that takes or gives a sparse tensor."""
    if func is aten._to_copy.default:
        return _to_copy(func, args, kwargs)
    seen = _Opened()
    inner = [seen.open(value) for value in args]
    named = {key: seen.open(value) for key, value in kwargs.items()}
    target = seen.place
    if named.get("device") is not None:
        target = place_of(named["device"])
        named["device"] = named["device"] if target is None else CPU
    named.pop("pin_memory", None)
    if seen.place is not None and seen.place.shut:
        raise shut(seen.place)
    if (seen.plain and seen.place is not None) or len(seen.places) > 1:
        placement.judge(func, args, kwargs, seen)
    try:
        out = (kernels.call_of(func) if isinstance(func, torch._ops.OpOverload) else func)(*inner, **named)
    except Exception as error:
        if target is None:
            raise
        out = rescue(func, inner, named, target, error)
    closed, nbytes = seen.close(out, target)
    if target is not None and isinstance(out, (torch.Tensor, list, tuple)):
        write(str(func), target, nbytes)
        tick = syncs.of(func) if isinstance(func, torch._ops.OpOverload) else None
        if tick is not None:
            tick(args, kwargs, out)
        elif func in _WAITS:
            syncs.note("sparse", _WAITS[func])
    return closed


def _to_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """Between host and device, or to another dtype where it is."""
    source = args[0]
    device = kwargs.get("device")
    place, inner = source._block.place, source._inner
    if place.shut:
        raise shut(place)
    target = place if device is None else place_of(device)
    moved = inner.to(kwargs["dtype"]) if kwargs.get("dtype") is not None else inner.clone()
    if target is None:
        for part in parts(inner):
            record("to_host", part, False, bool(kwargs.get("non_blocking")), place.label, "cpu")
        return moved
    return wrap(moved, target)[0]


def to_device(tensor: torch.Tensor, place: Place, non_blocking: bool, dtype: torch.dtype | None) -> Any:
    """A sparse host tensor, copied part by part."""
    inner = tensor.detach().clone() if dtype is None else tensor.detach().to(dtype, copy=True)
    shell, nbytes = wrap(inner, place)
    write("aten._to_copy.default", place, nbytes)
    for part in parts(inner):
        record("to_device", part, False, non_blocking, "cpu", place.label)
    return shell.requires_grad_(tensor.requires_grad)


# How often the host waits: measured on an H200.
_WAITS: Final[dict[Any, int]] = {
    aten._to_sparse.default: 1,
    aten._to_sparse.sparse_dim: 1,
    aten._to_sparse_csr.default: 2,
}

# Operators that make a sparse tensor out of strided ones; all others are known by their arguments.
special(
    *(
        getattr(getattr(aten, name), overload)
        for name in [
            "_to_sparse",
            "_to_sparse_csr",
            "_to_sparse_csc",
            "_to_sparse_bsr",
            "_to_sparse_bsc",
            "sparse_mask",
            "sparse_coo_tensor",
            "_sparse_coo_tensor_unsafe",
            "_sparse_coo_tensor_with_dims",
            "_sparse_coo_tensor_with_dims_and_tensors",
            "_sparse_compressed_tensor_with_dims",
            "embedding_sparse_backward",
            "_embedding_bag_sparse_backward",
            "_embedding_bag_backward",
            "_gather_sparse_backward",
        ]
        if hasattr(aten, name)
        for overload in getattr(aten, name).overloads()
        if "out" not in overload
    )
)(run)
