"""Notices memory of a virtual device that changes without an operator.

The host cannot write to the memory of a GPU: something has to be copied there, or computed there
by a kernel. Here the values lie in host tensors, inside of device tensors, and whoever gets hold of
one can write to it. So the bytes that one operator leaves are compared with those that the next one
finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.tensor import VIRTUAL, Plan, operator_hooks
from virtual_cuda.ops.whole_kernels import KernelHook
from virtual_cuda.torch_api.storage import as_bytes
from virtual_cuda.trees import leaves_of

# A program may replace these names.
_equal: Final = torch.equal
_copy: Final = torch.Tensor.copy_


class _LeftBytes(NamedTuple):
    """The bytes of a storage: as they are now, and as the latest operator left them."""

    now: torch.Tensor
    left: torch.Tensor


class WriteWatch(KernelHook):
    """Compares the memory that an operator finds with what was left: a hook for `operator_hooks`.

    What is seen for the first time is trusted. Values that it has seen stay in the host's memory
    as long as the watch does; the device's memory is counted as ever.
    """

    def __init__(self, most_operators: int | None = None) -> None:
        """Watch as many operators as this, or all: a look takes as long as a small operator."""
        self.has_found = False  # bytes that have changed in between
        self._left_to_watch = most_operators
        # By the storage on the host. It is kept, so that no other one gets its number.
        self._seen: dict[int, _LeftBytes] = {}

    def __call__(self, func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
        """Run an operator by its plan, and look at memory before and after.

        Gives and raises what the plan does.
        """
        if func.is_view:  # it neither reads nor writes
            return plan(args, kwargs)
        if self._left_to_watch is not None:
            if not self._left_to_watch:
                return plan(args, kwargs)
            self._left_to_watch -= 1
        given = self._seen_in((args, kwargs))
        self._compare(given)
        result = plan(args, kwargs)
        # Not all that an operator writes to stands in its schema: a batch norm's statistics do not.
        self._note_as_left(given)
        self.remember(result)
        return result

    def run_write(self, write: Callable[[], object]) -> None:
        self.run_kernel(write, ())

    def run_kernel(self, kernel: Any, args: Any) -> Any:
        """Return what `kernel(*args)` returns; it may write to any memory of the device."""
        seen = list(self._seen.values())
        self._compare(seen)
        try:
            return kernel(*args)
        finally:
            self._note_as_left(seen)

    def remember(self, *trees: Any) -> None:
        """Remember the bytes of the device tensors in these trees as they are now."""
        self._note_as_left(self._seen_in(trees))

    def was_made_here(self, tensor: Any) -> bool:
        """True if an operator has left the bytes of a tensor, since this watch is in use.

        Also for what is no tensor of the virtual device. A new tensor without values is made by no
        operator, and a copy from the host neither.
        """
        storages = [inner.untyped_storage()._cdata for inner in _inner_tensors_in(tensor)]
        return all(storage in self._seen for storage in storages)

    def _seen_in(self, tree: Any) -> list[_LeftBytes]:
        """The bytes of all device tensors in a tree; those not seen before are remembered."""
        found = []
        for inner in _inner_tensors_in(tree):
            storage = inner.untyped_storage()
            seen = self._seen.get(storage._cdata)
            if seen is None or len(seen.left) != storage.nbytes():  # it may have been resized
                now = as_bytes(storage)
                seen = self._seen[storage._cdata] = _LeftBytes(now, now.clone())
            found.append(seen)
        return found

    def _compare(self, seen: list[_LeftBytes]) -> None:
        """Note if bytes are not those that were left."""
        for each in seen:
            if not _equal(each.now, each.left):
                self.has_found = True

    def _note_as_left(self, seen: list[_LeftBytes]) -> None:
        for each in seen:
            _copy(each.left, each.now)


def _inner_tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the inner tensors of the device tensors in a tree that have bytes of their own."""
    for leaf in leaves_of(tree):
        if type(leaf) in VIRTUAL:
            inner = leaf._virtual_inner
            if inner.layout is torch.strided and not inner.is_meta and inner.numel():
                yield inner


@contextlib.contextmanager
def watch_writes(most_operators: int | None = None) -> Iterator[WriteWatch]:
    """Give a WriteWatch that is in use inside of the `with` block."""
    watch = WriteWatch(most_operators)
    operator_hooks.append(watch)
    try:
        yield watch
    finally:
        operator_hooks.remove(watch)
