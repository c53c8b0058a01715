"""Checks that this torch has the internals the device uses."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.jit._builtins as builtins
from torch import nn

from virtual_cuda.device.state import LAZY
from virtual_cuda.device.tensor import AUTOCAST, Tensor, make_shell
from virtual_cuda.errors import TorchUnsupported
from virtual_cuda.patching import Opening, Patch, around, torch_patches

# What is replaced or called by name, where a name that is gone would be replaced all the same and never asked again.
NAMES: Final = """
    torch.Tensor._make_wrapper_subclass torch.Tensor._reduce_ex_internal torch.UntypedStorage.__new__
    torch._C._ExcludeDispatchKeyGuard torch._C._disabled_torch_function_impl torch._C.DispatchKey.AutocastCUDA
    torch._C._dispatch_has_kernel_for_dispatch_key torch._C._dispatch_keys torch._C._len_torch_function_stack
    torch._C._nn.cross_entropy_loss torch._C._VariableFunctions.add torch._C.TensorBase.data torch._C.TensorBase.grad
    torch._utils._rebuild_tensor_v2 torch._utils._rebuild_parameter torch.nn.Module._apply torch.nn.Parameter.__new__
    torch.accelerator.current_accelerator torch.amp.autocast_mode.autocast.__enter__ torch.clear_autocast_cache
    torch.autograd.backward torch.autograd.function.BackwardCFunction.apply torch.autograd.profiler.record_function
    torch.cuda._lazy_init torch.cuda.is_initialized torch.nn.parallel.comm.broadcast_coalesced
    torch.optim.optimizer._foreach_supported_types torch.optim.optimizer.register_optimizer_step_pre_hook
    torch.utils.swap_tensors torch.utils._device._device_constructors
    torch.utils._foreach_utils._get_foreach_kernels_supported_devices
""".split()


def _has(path: str) -> bool:
    """Whether a dotted name leads somewhere. torch.optim takes its submodules' names away, so modules come first."""
    owner, _, name = path.rpartition(".")
    if owner in sys.modules:
        return hasattr(sys.modules[owner], name)
    try:
        pkgutil.resolve_name(path)
    except (AttributeError, ImportError):
        return False
    return True


def _shell(requires_grad: bool = False) -> Any:
    """A wrapper made as `tensor.wrap` makes it, everything by position."""
    last = (requires_grad, None, False, False, AUTOCAST)
    return make_shell(Tensor, (2, 3), (1, 4), 5, None, torch.float16, torch.strided, LAZY[1], False, *last)


def _shells() -> None:
    """A wrapper has the size, strides, offset, dtype, device and keys it was given."""
    shell = _shell(requires_grad=True)
    base: Any = torch._C.TensorBase
    keys = torch._C._dispatch_keys(shell)
    assert type(shell) is not torch.Tensor
    assert (tuple(shell.shape), shell.stride(), shell.storage_offset()) == ((2, 3), (1, 4), 5)
    assert (shell.dtype, shell.layout, shell.requires_grad) == (torch.float16, torch.strided, True)
    assert base.device.__get__(shell) == torch.device("lazy", 1)
    assert all(keys.has(key) for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.AutocastCUDA))


def _swaps() -> None:
    """`swap_tensors` exchanges content and leaves both objects, with what Python has put into them."""
    host: Any = torch.zeros(2)
    shell = _shell()
    shell._inner = "kept"
    kinds, objects = (type(shell), type(host)), (id(host), id(shell))
    torch.utils.swap_tensors(host, shell)
    assert (id(host), id(shell), type(host), type(shell)) == (*objects, *kinds)
    assert (host._inner, tuple(host.shape)) == ("kept", (2, 3))


def _fallbacks() -> None:
    """A Python kernel can be the fallback of a backend, and can be taken away again."""
    assert callable(getattr(torch.library.Library, "fallback", None))
    assert {"qualname", "fn", "dispatch_key"} & set(inspect.signature(torch.library.Library.fallback).parameters)
    assert "allow_override" in inspect.signature(torch.library.Library.impl).parameters


def _tags() -> None:
    """Operators say which of them change a tensor's shape in place, and what their arguments are."""
    op = torch.ops.aten.t_.default
    assert torch.Tag.inplace_view in op.tags
    alias = op._schema.arguments[0].alias_info
    assert alias is not None and alias.is_write and op._schema.name == "aten::t_"  # noqa: PT018


def _modes() -> None:
    """Autocast for "cuda" has a dtype without a GPU, and modules move as a tree."""
    assert torch.get_autocast_dtype("cuda") in (torch.float16, torch.bfloat16)
    assert "recurse" in inspect.signature(nn.Module._apply).parameters


CHECKS: Final[dict[str, Callable[[], object]]] = {
    "the arguments of Tensor._make_wrapper_subclass": _shells,
    # C++'s device has a guard on every build. An event needs one too, and where there is none it raises; a node of the
    # graph would end the process.
    "the device guard of lazy tensors": lambda: torch.Event(device="lazy:0"),
    "torch.utils.swap_tensors": _swaps,
    "torch.library.Library": _fallbacks,
    "the schemas and tags of operators": _tags,
    "autocast and Module._apply": _modes,
}


@functools.cache
def check() -> None:
    """Raises TorchUnsupported with the name of the first part that has changed. Done once per process."""
    for path in NAMES:
        if not _has(path):
            raise TorchUnsupported(path, torch.__version__)
    for part, question in CHECKS.items():
        try:
            question()
        except Exception as error:
            raise TorchUnsupported(part, torch.__version__) from error


def _find_builtin(original: Any, function: Any) -> Any:
    name = getattr(function, "__name__", "")
    ours = vars(torch).get(name) is function and hasattr(torch._C._VariableFunctions, name)
    return original(function) or (f"aten::{name}" if ours else None)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    # Made once per process: it must hold the functions as they were.
    builtins._get_builtin_table()
    yield around(builtins, "_find_builtin", _find_builtin)
