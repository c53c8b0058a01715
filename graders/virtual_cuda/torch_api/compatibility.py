"""Checks that this torch has the internals the device uses; a virtual Mac; a machine without an accelerator."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.jit._builtins as builtins
import torch.jit._recursive as recursive
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from virtual_cuda.device.state import LAZY
from virtual_cuda.device.tensor import AUTOCAST, Tensor, make_shell
from virtual_cuda.errors import SelectionOnly, TorchUnsupported
from virtual_cuda.patching import Opening, Patch, around, patch, torch_patches, unpatched
from virtual_cuda.torch_api.imports import few_imports

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
    return make_shell(
        Tensor, (2, 3), (1, 4), 5, None, torch.float16, torch.strided, LAZY[1], False, *last
    )


def _shells() -> None:
    """A wrapper has the size, strides, offset, dtype, device and keys it was given."""
    shell = _shell(requires_grad=True)
    base: Any = torch._C.TensorBase
    keys = torch._C._dispatch_keys(shell)
    assert type(shell) is not torch.Tensor
    assert (tuple(shell.shape), shell.stride(), shell.storage_offset()) == ((2, 3), (1, 4), 5)
    assert (shell.dtype, shell.layout, shell.requires_grad) == (torch.float16, torch.strided, True)
    assert base.device.__get__(shell) == torch.device("lazy", 1)
    assert all(
        keys.has(key) for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.AutocastCUDA)
    )


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
    assert {"qualname", "fn", "dispatch_key"} & set(
        inspect.signature(torch.library.Library.fallback).parameters
    )
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
    return (
        original(function) or original(unpatched(function)) or (f"aten::{name}" if ours else None)
    )


def _compile_original(original: Any, function: Any, *rest: Any) -> Any:
    return original(unpatched(function), *rest)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    # Made once per process: it must hold the functions as they were.
    builtins._get_builtin_table()
    yield around(builtins, "_find_builtin", _find_builtin)
    yield from (
        around(recursive, name, _compile_original) for name in ("try_compile_fn", "make_stub")
    )


MPS = torch.device("mps")


def _names_mps(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "mps"
    return isinstance(value, str) and value.partition(":")[0] == "mps"


def _asked_for(args: Any, kwargs: Any) -> bool:
    # Only where a device may stand: an einsum's text or a dict's key may say "mps" and mean something else.
    return _names_mps(kwargs.get("device")) or any(
        isinstance(a, torch.device) and a.type == "mps" for a in args
    )


class MpsTensor(torch.Tensor):
    """A tensor of a virtual Mac's GPU, held by the host. It can be made, computed with and read, but not trained."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> MpsTensor:
        if held.requires_grad:
            raise SelectionOnly("mps")
        made: MpsTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=MPS
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{repr(self.held)[:-1]}, device='mps:0')"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator whose tensors of the Mac's GPU are the host's, and the result there again, unless it is sent back."""
    there = _asked_for(args, kwargs)
    if not there:
        if not any(isinstance(each, MpsTensor) for each in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        there = "device" not in kwargs
    args, kwargs = tree_map(_on_host, (args, kwargs))
    found = func(*args, **kwargs)
    return (
        tree_map(lambda each: MpsTensor(each) if isinstance(each, torch.Tensor) else each, found)
        if there
        else found
    )


def _on_host(each: Any) -> Any:
    if isinstance(each, MpsTensor):
        return each.held
    return torch.device("cpu") if isinstance(each, torch.device) and each.type == "mps" else each


class _Functions(TorchFunctionMode):
    """Calls as the student writes them: `torch.tensor` never gets as far as an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is torch.device:  # naming a device is not using it
            return func(*args, **named)
        moved = getattr(func, "__name__", "") == "to" and any(map(_names_mps, args))
        if not moved and not _asked_for(args, named):
            return func(*args, **named)
        if named.get("requires_grad") or any(isinstance(each, torch.nn.Parameter) for each in args):
            raise SelectionOnly("mps")
        spelled = tuple(MPS if moved and _names_mps(each) else each for each in args)
        return _computed(func, spelled, named | ({"device": MPS} if "device" in named else {}))


class _Operators(TorchDispatchMode):
    """Operators, where a default device was set by code the mode above does not see."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler (a second) to tell it to keep away

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _availability(
    cuda_built: bool, mps_built: bool, mps: bool, accelerator: Any
) -> Iterator[Patch]:
    """What a machine without CUDA answers to the questions `select_device` may ask."""
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", False),
        (torch.cuda, "device_count", 0),
        (torch.backends.cuda, "is_built", cuda_built),
        (torch.backends.mps, "is_available", mps),
        (torch.backends.mps, "is_built", mps_built),
        (torch.mps, "device_count", int(mps)),
        (torch.accelerator, "is_available", mps),
        (torch.accelerator, "device_count", int(mps)),
    ]
    if hasattr(torch.mps, "is_available"):
        answers.append((torch.mps, "is_available", mps))
    for owner, name, answer in answers:
        yield owner, name, lambda *args, answer=answer, **kwargs: answer
    if not cuda_built:
        yield torch.version, "cuda", None

    yield (
        torch.accelerator,
        "current_accelerator",
        lambda check_available=False: accelerator if mps or not check_available else None,
    )


@contextlib.contextmanager
def virtual_mps() -> Iterator[torch.device]:
    """A Mac's answers to "which device is there?" for the length of a `with` block: MPS, and no CUDA."""
    with few_imports(), contextlib.ExitStack() as undo:
        patch(_availability(cuda_built=False, mps_built=True, mps=True, accelerator=MPS), undo)
        undo.enter_context(_Operators())  # type: ignore[no-untyped-call]
        undo.enter_context(_Functions())
        yield MPS


@contextlib.contextmanager
def no_accelerator(built: bool = False) -> Iterator[torch.device]:
    """The answers of a machine with neither CUDA nor MPS, also on one that has them.

    With `built`, torch has been built for both and only the devices are missing, as after `pip install torch` on a
    machine without a GPU: `is_built` is True there, and so is `torch.accelerator.current_accelerator()`.
    """
    accelerator = torch.device("cuda") if built else None
    with few_imports(), contextlib.ExitStack() as undo:
        patch(
            _availability(cuda_built=built, mps_built=built, mps=False, accelerator=accelerator),
            undo,
        )
        yield torch.device("cpu")
