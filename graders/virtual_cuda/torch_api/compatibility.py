"""Checks, once per process, that this torch does what the device is built on.

Names that a release of torch lacks are `internals.find_internal`'s; here is what has to behave as
it did. Where releases differ and code is needed for it, that is here as well, with the release and
the reason. What a release refuses of one operator is a fact of that operator: `ops/registry.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.utils.dlpack

from virtual_cuda.device.state import LAZY
from virtual_cuda.device.tensor import AUTOCAST, Tensor, make_shell
from virtual_cuda.errors import TorchUnsupported
from virtual_cuda.internals import INDISPENSABLE, find_internal


def _make_shell(requires_grad: bool = False) -> Any:
    """A wrapper made as `tensor.wrap` makes it, everything by position."""
    last = (requires_grad, None, False, False, AUTOCAST)
    return make_shell(
        Tensor, (2, 3), (1, 4), 5, None, torch.float16, torch.strided, LAZY[1], False, *last
    )


def _check_shells() -> None:
    """Check that a wrapper has the size, strides, offset, dtype and device it was given.

    Raises AssertionError if not.
    """
    shell = _make_shell(requires_grad=True)
    assert type(shell) is not torch.Tensor
    assert tuple(shell.shape) == (2, 3)
    assert shell.stride() == (1, 4)
    assert shell.storage_offset() == 5
    assert shell.dtype is torch.float16
    assert shell.layout is torch.strided
    assert shell.requires_grad
    device_in_c: Any = torch.Tensor.device
    assert device_in_c.__get__(shell) == torch.device("lazy", 1)


def _check_swaps() -> None:
    """Check that `swap_tensors` exchanges content and leaves both objects.

    What Python has put into them is exchanged, too. Raises AssertionError if not.
    """
    host: Any = torch.zeros(2)
    shell = _make_shell()
    shell._virtual_inner = "kept"
    host_class = type(host)
    shell_class = type(shell)
    objects = id(host), id(shell)
    torch.utils.swap_tensors(host, shell)
    assert (id(host), id(shell)) == objects
    assert (type(host), type(shell)) == (shell_class, host_class)
    assert host._virtual_inner == "kept"
    assert tuple(host.shape) == (2, 3)


def _check_fallbacks() -> None:
    """Check that a Python kernel can be a backend's fallback and can replace another one.

    Raises AssertionError if not.
    """
    library: Any = torch.library.Library
    assert callable(getattr(library, "fallback", None))
    names = inspect.signature(library.fallback).parameters.keys()
    assert not names.isdisjoint(("qualname", "fn", "dispatch_key"))
    assert "allow_override" in inspect.signature(library.impl).parameters


def _check_schemas() -> None:
    """Check that operators say what they change, and what their arguments are.

    Raises AssertionError if not.
    """
    op = torch.ops.aten.t_.default
    assert torch.Tag.inplace_view in op.tags
    alias = op._schema.arguments[0].alias_info
    assert alias is not None
    assert alias.is_write
    assert op._schema.name == "aten::t_"


def _check_autocast_and_modules() -> None:
    """Check that autocast for "cuda" has a dtype without a GPU, and that modules move as a tree.

    Raises AssertionError if not.
    """
    assert torch.get_autocast_dtype("cuda") in (torch.float16, torch.bfloat16)
    module = torch.nn.Module()
    assert module._parameters == module._buffers == module._modules == {}
    apply = find_internal("torch.nn.Module._apply", otherwise=None)
    assert apply is None or "recurse" in inspect.signature(apply).parameters


CHECKS: Final[dict[str, Callable[[], object]]] = {
    "the arguments of Tensor._make_wrapper_subclass": _check_shells,
    # C++'s device has a guard on every build. An event needs one too, and where there is none it
    # raises; a node of the graph would end the process.
    "the device guard of lazy tensors": lambda: torch.Event(device="lazy:0"),
    "torch.utils.swap_tensors": _check_swaps,
    "torch.library.Library": _check_fallbacks,
    "the schemas and tags of operators": _check_schemas,
    "autocast and Module._apply": _check_autocast_and_modules,
}


@functools.cache
def check_torch() -> None:
    """Check that this torch does what the device is built on; done once per process.

    Raises TorchUnsupported with the name of the first part that has changed.
    """
    for path in INDISPENSABLE:
        find_internal(path)
    for part, question in CHECKS.items():
        try:
            question()
        except Exception as error:  # whatever it is: this torch behaves otherwise
            raise TorchUnsupported(part, torch.__version__) from error


# ---- what differs between releases ---------------------------------------------------------------

# By its number, which DLPack fixes: torch 2.9 calls it kDLCUDA, before it was kDLGPU.
CUDA_IN_DLPACK: Final = torch.utils.dlpack.DLDeviceType(2)
# From torch 2.14 on there are other names of the class that uses NCCL.
OTHER_NAMES_OF_NCCL: Final = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
# The function of `torch.cuda._utils` that finds CUDA's compiler; torch 2.8 has the second name.
NAMES_OF_COMPILER_SEARCH: Final = ("_get_gpu_rtc_library", "_get_nvrtc_library")


def allows_tf32() -> bool:
    """True if products of float32 may use tensor cores (TF32).

    From torch 2.9 on that is `fp32_precision`, and the name of before may raise once it was used.
    """
    settings: Any = torch.backends.cuda.matmul
    if hasattr(settings, "fp32_precision"):
        return bool(settings.fp32_precision == "tf32")
    return bool(settings.allow_tf32)


def class_of_work_with_callback() -> Any:
    """The class of a collective operation's work that calls Python when it is waited for.

    None before torch 2.10, which brought it.
    """
    return find_internal("torch._C._distributed_c10d.PythonCallbackWork", otherwise=None)


def default_device() -> torch.device:
    """The device on which torch makes tensors by default.

    Before torch 2.10, `torch.get_default_device` raises after `set_default_device(None)`.
    """
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


def forget_default_device() -> None:
    """Make the CPU the default device, as if none had ever been set.

    Before torch 2.10, `torch.get_default_device` raises as long as torch remembers that there was
    one.
    """
    torch.set_default_device(None)
    memory = find_internal("torch._GLOBAL_DEVICE_CONTEXT", otherwise=None)
    if hasattr(memory, "device_context"):
        del memory.device_context


def store_of_group(group: Any) -> Any:
    """The key-value store through which the ranks of a process group find each other.

    torch 2.8 has no method for it, but a table of the stores by group; KeyError is raised for a
    group that is not in it.
    """
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    stores = find_internal("torch.distributed.distributed_c10d._pg_map", "torch.distributed")
    return stores[group][1]


def name_of_capture_check() -> str:
    """The method with which an optimizer asks, before each step, if a CUDA graph is captured.

    torch 2.11 has another name for it. From 2.12 on the old one is there again, too, and warns.
    """
    new_name = "_accelerator_graph_capture_health_check"
    if hasattr(torch.optim.Optimizer, new_name):
        return new_name
    return "_cuda_graph_capture_health_check"


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
