"""Which of several equal elements does CUDA name? The order its sorting networks and selections leave them in."""

from __future__ import annotations

from typing import Any, Final

import torch

aten: Final = torch.ops.aten
_NETWORK: Final = 32  # up to so many elements an unstable sort is a bitonic network; beyond, every sort is stable


def _network(keys: torch.Tensor) -> torch.Tensor:
    """The permutation that CUDA's bitonic network for 32 elements leaves in rows sorted by integer keys."""
    rows, length = keys.shape
    slots = torch.arange(_NETWORK).expand(rows, _NETWORK).clone()
    # What is not there sorts to the end.
    ranks = torch.full((rows, _NETWORK), torch.iinfo(torch.int64).max)
    ranks[:, :length] = keys
    there = slots < length
    thread = torch.arange(_NETWORK // 2)
    size = 2
    while size <= _NETWORK:
        flag = (thread & (size // 2)) != 0 if size < _NETWORK else torch.zeros_like(thread, dtype=torch.bool)
        stride = size // 2
        while stride:
            left = 2 * thread - (thread & (stride - 1))
            right = left + stride
            before = ((ranks[:, left] < ranks[:, right]) & there[:, left]) | ~there[:, right]
            swap = before == flag
            for table in (slots, ranks, there):
                one, other = table[:, left], table[:, right]
                table[:, left], table[:, right] = torch.where(swap, other, one), torch.where(swap, one, other)
            stride //= 2
        size *= 2
    return slots[:, :length]


def _ranks(rows: torch.Tensor, descending: bool) -> torch.Tensor:
    """Equal elements get equal integers, in the order of the sort; all that is no number is equal, and largest."""
    order = rows.sort(dim=1, descending=descending, stable=True)
    steps = order.values[:, 1:] != order.values[:, :-1]
    if rows.is_floating_point():
        steps &= ~(order.values[:, 1:].isnan() & order.values[:, :-1].isnan())
    ranks = torch.zeros(rows.shape, dtype=torch.int64)
    ranks[:, 1:] = steps.cumsum(1)
    return torch.empty_like(ranks).scatter_(1, order.indices, ranks)


def _as_rows(tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, Any]:
    """The tensor as rows along `dim`, and the way back."""
    moved = tensor.movedim(dim, -1)
    shape = moved.shape

    def back(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(*shape[:-1], rows.shape[-1]).movedim(-1, dim).contiguous()

    return moved.reshape(-1, shape[-1]), back


def sort(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """`sort` without `stable`: up to 32 elements through the network."""
    if self.dim() == 0 or self.numel() == 0 or not 2 <= self.shape[dim] <= _NETWORK or self.is_complex():
        return aten.sort.stable(self, stable=True, dim=dim, descending=descending)
    rows, back = _as_rows(self, dim)
    ranks = _ranks(rows, descending)
    if int(ranks.max(1).values.min()) == rows.shape[1] - 1:  # nothing is equal: any sort will do
        return aten.sort.stable(self, stable=True, dim=dim, descending=descending)
    order = _network(ranks)
    return back(rows.gather(1, order)), back(order)


def sort_stable(self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    if stable:
        return aten.sort.stable(self, stable=True, dim=dim, descending=descending)
    return sort(self, dim, descending)


def topk(self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """First all beyond the last one chosen, as they come, then as many equal to it as are needed; then sorted."""
    if self.dim() == 0 or self.numel() == 0 or not 0 < k <= self.shape[dim]:
        return aten.topk.default(self, k, dim, largest, sorted)
    rows, back = _as_rows(self, dim)
    ranks = _ranks(rows, largest)
    last = ranks.sort(1).values[:, k - 1 : k]
    # Beyond: 0, equal: 1, the rest: 2; a stable sort of that is the order of collection.
    chosen = ((ranks == last) + 2 * (ranks > last)).sort(dim=1, stable=True).indices[:, :k]
    if sorted:
        kept = ranks.gather(1, chosen)
        order = _network(kept) if 2 <= k <= _NETWORK else kept.sort(dim=1, stable=True).indices
        chosen = chosen.gather(1, order)
    return back(rows.gather(1, chosen)), back(chosen)


def _equal_one(func: Any, dim_at: int, dim_default: int | None, last: bool = False) -> Any:
    """`kthvalue` and `median` name the first element equal to the value found, `mode` the last."""

    def run(*args: Any, **kwargs: Any) -> Any:
        values, indices = func(*args, **kwargs)
        self = args[0]
        dim = args[dim_at] if len(args) > dim_at else kwargs.get("dim", dim_default)
        if self.dim() == 0 or self.numel() == 0:
            return values, indices
        keep = values.dim() == self.dim()
        wanted = values if keep else values.unsqueeze(dim)
        same = self == wanted
        if self.is_floating_point():
            same |= self.isnan() & wanted.isnan()
        if last:
            return values, self.shape[dim] - 1 - same.flip(dim).to(torch.uint8).argmax(dim, keepdim=keep)
        return values, same.to(torch.uint8).argmax(dim, keepdim=keep)

    return run


KERNELS: Final[dict[Any, Any]] = {
    aten.kthvalue.default: _equal_one(aten.kthvalue.default, 2, -1),
    aten.median.dim: _equal_one(aten.median.dim, 1, None),
    aten.mode.default: _equal_one(aten.mode.default, 1, -1, last=True),
    aten.nanmedian.dim: _equal_one(aten.nanmedian.dim, 1, None),
    aten.sort.default: sort,
    aten.sort.stable: sort_stable,
    aten.topk.default: topk,
}
