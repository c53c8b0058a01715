"""Operators of `torch.library`, which a program or another package has defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from virtual_cuda.internals import DispatchKeySet, dispatch_also_to, find_internal, has_kernel
from virtual_cuda.ops.dispatch import run_any

# Namespaces with a function of their own: function(func, args, kwargs).
# `torch_api/distributed.py` adds one.
NAMESPACES: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {}
_CUDA: Final = find_internal("torch._C.DispatchKey.CUDA", "operators of torch.library")
_VIEWS: Final = find_internal("torch._C.DispatchKey.ADInplaceOrView", "views by torch.library")
# The kernels that programs have registered from Python, as "namespace/name/key".
_python_kernels: Final = find_internal("torch.library._impls", otherwise=frozenset())
_ONLY_CUDA: Final = (
    "the operator {0} has no implementation that the virtual GPU can run; "
    "add one in Python, for the CPU or for every device: "
    'torch.library.register_kernel("{0}", "cpu", function)'
)


def run_library_operator(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator that was defined with `torch.library`, and return its results.

    A Python kernel for CUDA or for all devices is called with device tensors, as on a GPU. Other
    kernels get the CPU tensors inside, and the operator is recorded. What is registered may change
    at any time, so it is asked at every call. Raises NotImplementedError for an operator that only
    has a compiled CUDA kernel, DeviceClosed or the error of what ended the device, torch's
    OutOfMemoryError, and what kernels raise.
    """
    name = func.name()
    if name.partition("::")[0] in NAMESPACES:
        return NAMESPACES[func.namespace](func, args, kwargs)
    path = name.replace("::", "/")
    if {f"{path}/CUDA", f"{path}/CompositeExplicitAutograd"} & _python_kernels:
        return _call_python_kernel(func, args, kwargs)
    if not any(has_kernel(name, key) for key in ("CPU", "CompositeExplicitAutograd")):
        raise NotImplementedError(_ONLY_CUDA.format(name))
    return run_any(func, args, kwargs)


def _call_python_kernel(func: Any, args: Any, kwargs: Any) -> Any:
    """Call the Python kernel that an operator has for CUDA, and give its results.

    Where the operator gives a view, autograd notes it. Raises what the kernel raises.
    """
    if not _gives_view(func):
        return func.redispatch(DispatchKeySet(_CUDA), *args, **kwargs)
    with dispatch_also_to(DispatchKeySet(_VIEWS)):
        return func.redispatch(DispatchKeySet(_CUDA), *args, **kwargs)


def _gives_view(func: Any) -> bool:
    """True if the operator's schema says that a result shares the memory of an argument."""
    return any(result.alias_info is not None for result in func._schema.returns)
