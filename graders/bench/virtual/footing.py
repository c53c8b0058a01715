"""Does this torch still have, and do as before, what the virtual device is built on?

Asked once per process, before anything is replaced: a release that has changed one of these internals gets one
sentence at the door, and not a wrong number later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.parallel.comm
import torch.optim.optimizer
import torch.utils._device
import torch.utils._foreach_utils
from torch import nn

from graders.errors import TorchUnsupported

# What is replaced or called by name, where a name that is gone would be replaced all the same and never asked again.
NAMES: Final = (
    (torch.Tensor, "_make_wrapper_subclass"),
    (torch.Tensor, "_reduce_ex_internal"),
    (torch.UntypedStorage, "__new__"),
    (torch._C, "_ExcludeDispatchKeyGuard"),
    (torch._C, "_disabled_torch_function_impl"),
    (torch._C, "_dispatch_has_kernel_for_dispatch_key"),
    (torch._C, "_len_torch_function_stack"),
    (torch._C, "_accelerator_getAccelerator"),
    (torch._C._nn, "cross_entropy_loss"),
    (torch._C._VariableFunctions, "add"),
    (torch._utils, "_rebuild_tensor_v2"),
    (torch._utils, "_rebuild_parameter"),
    (torch.accelerator, "current_accelerator"),
    (torch.amp.autocast_mode.autocast, "__enter__"),
    (torch.autograd.function.BackwardCFunction, "apply"),
    (torch.cuda, "_lazy_init"),
    (torch.nn.parallel.comm, "broadcast_coalesced"),
    (torch.optim.optimizer, "_foreach_supported_types"),
    (torch.utils, "swap_tensors"),
    (torch.utils._device, "_device_constructors"),
    (torch.utils._foreach_utils, "_get_foreach_kernels_supported_devices"),
)


def _shells() -> None:
    """A wrapper made by position has the size, strides, offset, dtype, device and keys it was given."""
    from graders.bench.virtual.places import LAZY
    from graders.bench.virtual.tensor import AUTOCAST, Tensor, make_shell

    size, strides = (2, 3), (1, 4)
    shell = make_shell(
        Tensor, size, strides, 5, None, torch.float16, torch.strided, LAZY[1], False, True, None, False, False, AUTOCAST
    )
    base = torch._C.TensorBase
    assert (tuple(shell.shape), shell.stride(), shell.storage_offset()) == (size, strides, 5)
    assert (shell.dtype, shell.layout, shell.requires_grad) == (torch.float16, torch.strided, True)
    assert base.device.__get__(shell) == LAZY[1]  # type: ignore[attr-defined]
    keys = torch._C._dispatch_keys(shell)
    assert all(keys.has(key) for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.AutocastCUDA))
    assert type(shell) is Tensor


def _guards() -> None:
    """Autograd accepts C++'s device and comes back through Python's dispatcher; results keep their identity."""
    shell = _Probe.make(requires_grad=True)
    out = shell * 2  # a graph node asks for a device guard
    assert type(out) is _Probe
    assert out.grad_fn is not None
    assert "aten.mul.Tensor" in _Probe.seen
    assert out.mul_(3) is out
    (gradient,) = torch.autograd.grad(out, shell, torch.ones(2))
    assert gradient._inner.tolist() == [6.0, 6.0]


def _swaps() -> None:
    """`swap_tensors` exchanges content and leaves both objects, with what Python has put into them."""
    host, shell = torch.zeros(2), _Probe.make()
    one, other = id(host), id(shell)
    torch.utils.swap_tensors(host, shell)
    assert (id(host), id(shell)) == (one, other)
    assert (type(host), type(shell)) == (_Probe, torch.Tensor)
    assert host._inner.tolist() == [1.0, 1.0]  # type: ignore[attr-defined]
    data, fresh = torch._C.TensorBase.data, _Probe.make((3,))  # type: ignore[attr-defined]
    data.__set__(host, fresh)
    assert host.shape == (3,)


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
    assert alias is not None
    assert alias.is_write
    assert op._schema.name == "aten::t_"


def _modes() -> None:
    """Autocast for "cuda" can be entered without a GPU, and grad mode asked."""
    assert torch.get_autocast_dtype("cuda") in (torch.float16, torch.bfloat16)
    assert hasattr(torch.optim.optimizer, "register_optimizer_step_pre_hook")
    assert "recurse" in inspect.signature(nn.Module._apply).parameters


class _Probe(torch.Tensor):
    """The smallest tensor that works as ours do."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    seen: Final[list[str]] = []
    _inner: torch.Tensor

    @staticmethod
    def make(size: tuple[int, ...] = (2,), requires_grad: bool = False) -> Any:
        from graders.bench.virtual.tensor import AUTOCAST

        shell = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            _Probe, size, dtype=torch.float32, device="lazy:0", requires_grad=requires_grad, _extra_dispatch_keys=AUTOCAST
        )
        shell._inner = torch.ones(size)
        return shell

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        inner = [a._inner if type(a) is _Probe else a for a in args]
        out = func(*inner, **(kwargs or {}))
        for given, opened in zip(args, inner, strict=True):
            if opened is out:
                return given
        shell = _Probe.make(tuple(out.shape))
        shell._inner = out
        return shell


CHECKS: Final[dict[str, Callable[[], None]]] = {
    "the arguments of Tensor._make_wrapper_subclass": _shells,
    "what autograd does with wrapper subclasses": _guards,
    "torch.utils.swap_tensors": _swaps,
    "torch.library.Library": _fallbacks,
    "the schemas and tags of operators": _tags,
    "torch's autocast and hooks": _modes,
}


class _Trusted:
    """Whether this process has looked."""

    yet: bool = False


trusted: Final = _Trusted()


def check() -> None:
    """Nothing, or TorchUnsupported with the name of the first part that has changed."""
    if trusted.yet:
        return
    for owner, name in NAMES:
        if not hasattr(owner, name):
            raise TorchUnsupported(f"{getattr(owner, '__name__', owner)}.{name}", torch.__version__)
    for part, question in CHECKS.items():
        try:
            question()
        except Exception as error:
            raise TorchUnsupported(part, torch.__version__) from error
    _Probe.seen.clear()
    trusted.yet = True
