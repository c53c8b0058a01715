"""How are sparse tensors made and moved? The constructors that name a device, and `.to` for sparse host tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from graders.bench.virtual import sparse
from graders.bench.virtual.conversions import place_named
from graders.bench.virtual.places import Place
from graders.bench.virtual.tensor import VIRTUAL

aten: Final = torch.ops.aten
COMPRESSED: Final = (
    "sparse_compressed_tensor",
    "sparse_csr_tensor",
    "sparse_csc_tensor",
    "sparse_bsr_tensor",
    "sparse_bsc_tensor",
)

LAYOUTS: Final = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def _wanted(device: Any, given: tuple[Any, ...]) -> Place | None:
    """The place a constructor is asked for, by its `device` or by the tensors it gets."""
    if device is not None:
        return place_named(device)
    return next((value._block.place for value in given if type(value) in VIRTUAL), None)


def coo(original: Any) -> Any:
    def made(indices: Any = None, values: Any = None, size: Any = None, **kwargs: Any) -> Any:
        place = _wanted(kwargs.get("device"), (values, indices))
        if place is None or values is None:
            given = [value for value in (indices, values, size) if value is not None]
            return original(*given, **kwargs)
        where = torch.as_tensor(indices, device=place.cuda).to(torch.int64)
        what = torch.as_tensor(values, dtype=kwargs.get("dtype"), device=place.cuda)
        if not kwargs.get("requires_grad") and not isinstance(values, torch.Tensor):
            what = what.detach()
        build = aten.sparse_coo_tensor
        coalesced = kwargs.get("is_coalesced")
        # a place that no layout or device argument may contradict: C++ asks the tensors
        options = {"dtype": what.dtype, "layout": torch.sparse_coo, "device": place.lazy, "is_coalesced": coalesced}
        built = (
            build.indices(where, what, **options) if size is None else build.indices_size(where, what, size, **options)
        )
        return built.detach().requires_grad_() if kwargs.get("requires_grad") else built

    return made


def compressed(original: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        place = _wanted(kwargs.get("device"), args)
        if place is None:
            return original(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        given = [value._inner if type(value) in VIRTUAL else value for value in args]
        plain = original(*given, **{**kwargs, "device": "cpu"})
        if not all(type(value) in VIRTUAL for value in args[:3]):
            return sparse.to_device(plain, place, False, None).requires_grad_(requires_grad)
        known = {value._inner.untyped_storage()._cdata: value._block for value in args if type(value) in VIRTUAL}
        return sparse.wrap(plain, place, known)[0].requires_grad_(requires_grad)

    return made


def to(original: Any) -> Any:
    """`.to` and all that ends in it, for sparse host tensors."""

    def converted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.layout not in LAYOUTS or type(self) is sparse.SparseTensor:
            return original(self, *args, **kwargs)
        device = kwargs.get("device", args[0] if args else None)
        place = (
            place_named(device.device if isinstance(device, torch.Tensor) else device) if device is not None else None
        )
        if place is None:
            return original(self, *args, **kwargs)
        dtype = kwargs.get("dtype", next((value for value in args if isinstance(value, torch.dtype)), None))
        return sparse.to_device(self, place, bool(kwargs.get("non_blocking", False)), dtype)

    return converted


def patches() -> list[tuple[Any, str, Any]]:
    made: list[tuple[Any, str, Any]] = [(torch, name, compressed(getattr(torch, name))) for name in COMPRESSED]
    made += [(torch, "sparse_coo_tensor", coo(torch.sparse_coo_tensor)), (torch.Tensor, "to", to(torch.Tensor.to))]
    return made
