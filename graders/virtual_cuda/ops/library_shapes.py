"""What the results of operators of `torch.library` look like, in a run without values.

Their shape functions are those that were registered with `torch.library.register_fake`. One whose
result has a size that depends on values asks its context for that size; here it gets the largest
there can be, as far as anybody knows.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import torch

from virtual_cuda.device.no_values import note_assumption
from virtual_cuda.internals import find_internal

_operators: Final = find_internal("torch._library.simple_registry.singleton", otherwise=None)
_use_context: Final = find_internal(
    "torch._library.fake_impl.set_ctx_getter", otherwise=contextlib.nullcontext
)


class _LargestSizes:
    """What a shape function asks for sizes that depend on values: `torch.library.get_ctx()`."""

    def __init__(self, name: str, inner: tuple[Any, ...]) -> None:
        """Answer for the operator of this name; `inner` are its arguments by position."""
        self._name = name
        self._inner = inner

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        """The largest size: `max`, else as many rows as the first tensor has, and at least `min`.

        It is noted for the report.
        """
        size = max
        if size is None:
            tensors = [each for each in self._inner if isinstance(each, torch.Tensor)]
            size = next((each.shape[0] for each in tensors if each.dim()), 1)
        if size < min:
            size = min
        note_assumption(f"took {self._name} to give {size:,} rows, the most it is expected to")
        return size

    create_unbacked_symint = new_dynamic_size  # its older name


def _find_shape_function(func: Any) -> Any:
    """The shape function that was registered for an operator.

    None where there is none, or this torch keeps them in another way: then the operator itself
    runs, and a shape function that asks for a size raises.
    """
    try:
        return _operators.find(func.name()).fake_impl.kernel
    except AttributeError:
        return None


def result_of_shape_function(func: Any, *inner: Any, **named: Any) -> Any:
    """What an operator's shape function makes of tensors of "meta".

    Raises what that raises, and what torch raises for an operator without one.
    """
    kernel = _find_shape_function(func)
    if kernel is None:
        return func(*inner, **named)
    sizes = _LargestSizes(func.name(), inner)
    with _use_context(lambda: sizes):
        return kernel(*inner, **named)
