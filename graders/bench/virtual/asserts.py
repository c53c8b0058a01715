"""What happens when a kernel meets an index out of range? It asserts on the device, and the host hears of it later.

CUDA's kernels cannot raise: the launch returns, the next thing that waits for the device reports "device-side
assert triggered", and from then on the device is lost to this process.
"""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from graders.bench.virtual.places import VirtualGpu, now
from graders.bench.virtual.wording import device_assert

# Operators that check values, not shapes, and so check them on the device.
_ASSERTING: Final = frozenset(
    """
    index index_put index_put_ _index_put_impl_ _unsafe_index index_select index_add index_add_ index_copy
    index_copy_ index_reduce index_reduce_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce
    scatter_reduce_ take put put_ embedding embedding_renorm_ _embedding_bag _embedding_bag_forward_only
    nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward multi_margin_loss
    multilabel_margin_loss_forward binary_cross_entropy multinomial _assert_async
    """.split()
)
_OUT_OF_RANGE: Final = re.compile(
    r"out of bounds|out of range|between 0 and 1|`inf`, `nan` or element < 0|invalid multinomial|"
    r"Expected .* nonzero value|nonzero value"
)


NOTHING: Final = object()  # what an operator without results gives


def later(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The result a launch gives although its kernel will assert; None if this error is not of that kind."""
    name = func._schema.name.partition("::")[2]
    gpu = now.gpu
    if gpu is None or name not in _ASSERTING or not _OUT_OF_RANGE.search(str(error)):
        return None
    gpu.asserted = True
    if func._schema.is_mutable:
        return inner[0]
    if not func._schema.returns:
        return NOTHING
    return _blank(func(*_meta(inner), **{k: _meta(v) for k, v in kwargs.items() if k != "generator"}))


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_meta(item) for item in value)
    return value


def _blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(_blank(item) for item in value)
    return value


def report(gpu: VirtualGpu) -> None:
    """Called wherever the host waits: an assert that has happened is heard of now, and the device is lost."""
    if gpu.asserted:
        gpu.lost = True
        for place in gpu.places:
            place.shut = True
        raise device_assert()
