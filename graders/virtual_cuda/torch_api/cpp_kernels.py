"""The kernels with which C++ asks us: for the device it has none of its own.

C++ finds them by a dispatch key. Factories, as `torch.empty`, have no tensor as an argument, so
they do not reach `Tensor.__torch_dispatch__`; they end here.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import forked_process_error
from virtual_cuda.device.layout import SMALL
from virtual_cuda.device.state import VirtualDevice, now, open_device_of
from virtual_cuda.device.tensor import wrap
from virtual_cuda.errors import DeviceClosed
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import autocast, layers, recurrent
from virtual_cuda.ops.dispatch import allocate, record_operation, run_any, thread_state
from virtual_cuda.ops.registry import declared_operators
from virtual_cuda.torch_api.copying import copy_from

aten: Final = torch.ops.aten
_EXABYTE: Final = 1 << 60
# The operators that make memory without values, and their names in the ledger.
_EMPTY: Final = {
    aten.empty.memory_format: "aten.empty.memory_format",
    aten.empty_strided.default: "aten.empty_strided.default",
}
# A CUDA build has kernels of its own for these, which would ask for a driver.
_OWN_IN_CUDA: Final = (
    "empty.memory_format",
    "empty_strided",
    "_efficientzerotensor",
    "tril_indices",
    "triu_indices",
)
# Where a mode sees operators and dispatch to Python is off, as for indices in a list, C++ does not
# find a kernel that is for all operators. It finds one that an operator has by its own name.
_BY_NAME: Final = ("empty.memory_format", "empty_strided")
# C++ makes these of other operators and of a kernel that it looks for by its own name of the
# device.
_WITH_KERNELS: Final = ("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
# C++ makes sparse tensors for a device "cuda" with these, under dispatch keys of their own.
_SPARSE_FACTORIES: Final = ("empty.memory_format", "zeros", "_sparse_compressed_tensor_with_dims")
_SPARSE_KEYS: Final = ("SparseCUDA", "SparseCsrCUDA")


def _run_without_kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator for the device that C++ has no kernel for: factories above all.

    Allocates memory, records the operator, and gives its results. Raises DeviceClosed for a tensor
    that has outlived its device, RuntimeError in a forked process, AssertionError, as torch does,
    where no device is open, torch's OutOfMemoryError, what CUDA raises, and NeedsValues in a run
    without values.
    """
    if op.name() == "aten::_copy_from":
        return copy_from(*args)
    if now.gpu is None:
        raise _no_device_error(kwargs.get("device"))
    if op in _EMPTY and kwargs.get("layout") in (None, torch.strided):
        return _make_empty(op, args, kwargs)
    return run_any(op, args, kwargs)


def _no_device_error(device: torch.device | None) -> Exception:
    """The error for an operator on the device where none is open; it is returned, not raised.

    It is DeviceClosed, that of a forked process, or AssertionError.
    """
    if device is not None and device.type == "lazy":
        # Asked for by a tensor that has outlived its device.
        return DeviceClosed(f"cuda:{device.index or 0}")
    if thread_state.forked:
        return forked_process_error()
    return AssertionError("Torch not compiled with CUDA enabled")


def _make_empty(op: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::empty` or `aten::empty_strided`; the memory itself is the host's.

    Records the operator. The strides that `thread_state` has for it are used up, and the device
    among `kwargs` is replaced by that of the tensors inside. Raises torch's OutOfMemoryError, and
    CUDA's error for an index that is not there.
    """
    device = open_device_of(kwargs["device"])
    assert device is not None
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    size = math.prod(args[0]) * dtype.itemsize
    _refuse_if_too_large(device, size)
    # `Tensor.to` knows better than C++ which strides a copy shall have.
    strides = thread_state.strides
    thread_state.strides = None
    if strides is not None:
        inner = torch.empty_strided(
            args[0], strides, dtype=kwargs.get("dtype"), device=device.inside
        )
    else:
        kwargs["device"] = device.inside
        kwargs.pop("pin_memory", None)
        inner = op(*args, **kwargs)
    block = allocate(device, inner.untyped_storage().nbytes())
    record_operation(_EMPTY[op], device, inner.nbytes)
    return wrap(inner, block)


def _refuse_if_too_large(device: VirtualDevice, nbytes: int) -> None:
    """Raise torch's OutOfMemoryError for more than is free, before the host tries to find it.

    The device's cache is emptied and its GPU's observers are told, as for any request that fails;
    not so for an exabyte or more.
    """
    if _EXABYTE <= nbytes < 8 * _EXABYTE:  # what is more, C++ cannot count
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
    free = device.memory.allowed - device.memory.live
    if SMALL < nbytes < _EXABYTE and nbytes > free:
        allocate(device, nbytes)  # which raises


# ---- registering them ----------------------------------------------------------------------------

_libraries: Final[list[torch.library.Library]] = []  # empty unless the kernels are registered
# Where this torch lacks it, a library's kernels go when nothing refers to the library any more.
_destroy_library: Final = find_internal(
    "torch.library.Library._destroy", otherwise=lambda library: None
)


def register_kernels() -> None:
    """Register the kernels with which C++ asks us.

    Done once: they do nothing while no virtual device is open.
    """
    if _libraries:
        return
    everything = torch.library.Library("_", "IMPL")
    aten_only = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # "Overriding a previously registered kernel": that is what is meant.
        warnings.simplefilter("ignore")
        for key in ("CUDA", "Lazy"):
            everything.fallback(_run_without_kernel, key)
        if _operator_with_name("_copy_from") is not None:
            aten_only.impl("_copy_from", copy_from, "Lazy")
        for name, facts in declared_operators().items():
            if facts.whole:  # else C++ takes them apart
                _register_for(aten_only, name, "Lazy", allow_override=True)
        for name in _WITH_KERNELS:
            _register_for(aten_only, name, "CUDA", allow_override=True)
        for key in _SPARSE_KEYS:
            for name in _SPARSE_FACTORIES:
                _register_for(aten_only, name, key, allow_override=True)
        if torch.version.cuda:
            for name in _OWN_IN_CUDA:
                _register_for(aten_only, name, "CUDA", allow_override=True)
        for name in _BY_NAME:
            _register_for(aten_only, name, "Lazy")
        autocast.register_policies(aten_only)
        recurrent.register_layers(aten_only)
        layers.register_traced_convolution(aten_only)
    _libraries.extend((everything, aten_only))


def _operator_with_name(name: str) -> Any:
    """The overload of aten with this name, or None if this torch has none.

    A name is "empty.memory_format", or "dropout" for the default overload.
    """
    base, _, overload = name.partition(".")
    overloads = getattr(aten, base, None)
    return getattr(overloads, overload or "default", None)


def _register_for(library: Any, name: str, key: str, **options: Any) -> None:
    """Have `_run_without_kernel` called for an operator on tensors with a dispatch key.

    Does nothing if this torch lacks the operator.
    """
    operator = _operator_with_name(name)
    if operator is not None:
        library.impl(name, functools.partial(_run_without_kernel, operator), key, **options)


def withdraw_kernels() -> None:
    """Remove our kernels, so that those of a real GPU come back.

    Where there is no GPU ours may stay: nothing reaches them.
    """
    for library in _libraries:
        _destroy_library(library)
    _libraries.clear()
