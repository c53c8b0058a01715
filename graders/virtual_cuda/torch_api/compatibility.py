"""Checks, once per process, that this torch does what the device is built on.

Names that a release of torch lacks are `internals.find_internal`'s; here is what has to behave as
it did. Where releases differ and code is needed for it, that is here as well, with the release and
the reason.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

from virtual_cuda.device.state import LAZY
from virtual_cuda.device.tensor import AUTOCAST, Tensor, make_shell
from virtual_cuda.errors import TorchUnsupported
from virtual_cuda.internals import INDISPENSABLE, find_internal


def _shell(requires_grad: bool = False) -> Any:
    """A wrapper made as `tensor.wrap` makes it, everything by position."""
    last = (requires_grad, None, False, False, AUTOCAST)
    return make_shell(
        Tensor, (2, 3), (1, 4), 5, None, torch.float16, torch.strided, LAZY[1], False, *last
    )


def _shells() -> None:
    """Check that a wrapper has the size, strides, offset, dtype and device it was given."""
    shell = _shell(requires_grad=True)
    assert type(shell) is not torch.Tensor
    assert (tuple(shell.shape), shell.stride(), shell.storage_offset()) == ((2, 3), (1, 4), 5)
    assert (shell.dtype, shell.layout, shell.requires_grad) == (torch.float16, torch.strided, True)
    device_in_c: Any = torch.Tensor.device
    assert device_in_c.__get__(shell) == torch.device("lazy", 1)


def _swaps() -> None:
    """Check that `swap_tensors` exchanges content and leaves both objects.

    What Python has put into them is exchanged, too.
    """
    host: Any = torch.zeros(2)
    shell = _shell()
    shell._inner = "kept"
    kinds, objects = (type(shell), type(host)), (id(host), id(shell))
    torch.utils.swap_tensors(host, shell)
    assert (id(host), id(shell), type(host), type(shell)) == (*objects, *kinds)
    assert (host._inner, tuple(host.shape)) == ("kept", (2, 3))


def _fallbacks() -> None:
    """Check that a Python kernel can be a backend's fallback and can replace another one."""
    assert callable(getattr(torch.library.Library, "fallback", None))
    assert {"qualname", "fn", "dispatch_key"} & set(
        inspect.signature(torch.library.Library.fallback).parameters
    )
    assert "allow_override" in inspect.signature(torch.library.Library.impl).parameters


def _tags() -> None:
    """Check that operators say what they change, and what their arguments are."""
    op = torch.ops.aten.t_.default
    assert torch.Tag.inplace_view in op.tags
    alias = op._schema.arguments[0].alias_info
    assert alias is not None and alias.is_write and op._schema.name == "aten::t_"  # noqa: PT018


def _modes() -> None:
    """Check that autocast for "cuda" has a dtype without a GPU, and that modules move as a tree."""
    assert torch.get_autocast_dtype("cuda") in (torch.float16, torch.bfloat16)
    apply = find_internal("torch.nn.Module._apply", otherwise=None)
    assert apply is None or "recurse" in inspect.signature(apply).parameters


CHECKS: Final[dict[str, Callable[[], object]]] = {
    "the arguments of Tensor._make_wrapper_subclass": _shells,
    # C++'s device has a guard on every build. An event needs one too, and where there is none it
    # raises; a node of the graph would end the process.
    "the device guard of lazy tensors": lambda: torch.Event(device="lazy:0"),
    "torch.utils.swap_tensors": _swaps,
    "torch.library.Library": _fallbacks,
    "the schemas and tags of operators": _tags,
    "autocast and Module._apply": _modes,
}


@functools.cache
def check() -> None:
    """Check that this torch does what the device is built on; done once per process.

    Raises TorchUnsupported with the name of the first part that has changed.
    """
    for path in INDISPENSABLE:
        find_internal(path)
    for part, question in CHECKS.items():
        try:
            question()
        except Exception as error:
            raise TorchUnsupported(part, torch.__version__) from error


# ---- what differs between releases ---------------------------------------------------------------


def sparse_tensors_to_validate() -> list[Any]:
    """The list of sparse tensors that `torch.load` has read and not yet validated.

    It is torch's own list, to be changed in place; an empty one if this torch has none. torch 2.15
    has one for each thread; before, there was one for all.
    """
    found = find_internal("torch._utils._get_sparse_tensors_to_validate", otherwise=None)
    if found is not None:
        waiting: list[Any] = found()
        return waiting
    return find_internal("torch._utils._sparse_tensors_to_validate", otherwise=[])  # type: ignore[no-any-return]
