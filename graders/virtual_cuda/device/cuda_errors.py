"""CUDA's errors and warnings, in the words that torch has for them on a GPU."""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Any, Final

import torch

from virtual_cuda.device.hidden import hidden_attribute, reveal
from virtual_cuda.device.memory import OutOfMemory
from virtual_cuda.sizes import format_size

_REPORTED_LATER: Final = (
    "CUDA kernel errors might be asynchronously reported at some other API call, "
    "so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
_CUDA_TYPES: Final = (
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html "
    "for more information.\n"
)
_MEMORY_MANAGEMENT: Final = (
    "See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-alloc-conf)"
)


# ---- the device ----------------------------------------------------------------------------------


def accelerator_error(text: str) -> RuntimeError:
    """torch's error for what CUDA itself reports, with this text."""
    return torch.AcceleratorError(text)


def cuda_error(text: str, name: str) -> RuntimeError:
    """The error that torch makes of CUDA's own, which has a text and a name."""
    return accelerator_error(
        f"CUDA error: {text}\nSearch for `cudaError{name}' in {_CUDA_TYPES}{_REPORTED_LATER}"
    )


def invalid_ordinal_error() -> RuntimeError:
    """The error for the index of a device that is not there."""
    return accelerator_error(
        "CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n" + _REPORTED_LATER
    )


def device_assert_error() -> RuntimeError:
    """The error after a kernel has met a bad index.

    It is raised at the first wait of the host, and at every call from then on.
    """
    return cuda_error("device-side assert triggered", "Assert")


def forked_process_error() -> RuntimeError:
    """The error in a process that was forked after CUDA was used."""
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
        "you must use the 'spawn' start method"
    )


def out_of_memory_error(error: OutOfMemory, index: int) -> RuntimeError:
    """torch's OutOfMemoryError for a request that the allocator of this device has refused."""
    memory = reveal(error.allocator)
    allowed = ""
    if memory.allowed < memory.total:
        allowed = f"{format_size(memory.allowed)} allowed; "
    unallocated = memory.reserved - memory.live
    return torch.cuda.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {format_size(error.requested)}. "
        f"GPU {index} has a total capacity of {format_size(memory.total)} "
        f"of which {format_size(memory.free)} is free. "
        f"Including non-PyTorch memory, this process has {format_size(memory.reserved)} "
        f"memory in use. {allowed}"
        f"Of the allocated memory {format_size(memory.live)} is allocated by PyTorch, and "
        f"{format_size(unallocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  " + _MEMORY_MANAGEMENT
    )


# ---- tensors on several devices ------------------------------------------------------------------


def two_devices_error(first: str, second: str) -> RuntimeError:
    """The error for operands on two devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, "
        f"but found at least two devices, {first} and {second}!"
    )


def argument_elsewhere_error(
    argument: str, device: str, other_device: str, method: str
) -> RuntimeError:
    """The error that names the one argument on another device than the others.

    `method` is the C++ function that compares the devices.
    """
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {argument} is on {device}, "
        f"different from other tensors on {other_device} "
        f"(when checking argument in method {method})"
    )


def not_on_host_error(label: str) -> TypeError:
    """The error of `numpy()` for a tensor on the device with this label."""
    return TypeError(
        f"can't convert {label} device type tensor to numpy. "
        "Use Tensor.cpu() to copy the tensor to host memory first."
    )


def label_of(tensor: Any) -> str:
    """The device of a tensor as messages spell it: `cuda:0` or `cpu`."""
    return str(tensor.device)


# ---- dtypes --------------------------------------------------------------------------------------

# How C++ spells dtypes.
DTYPE_NAMES: Final = {
    torch.bfloat16: "BFloat16",
    torch.bool: "Bool",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.uint8: "Byte",
}
# C++ calls tensors of these by their Python type,
# and others by backend and dtype: `CUDABFloat16Type`.
_WITH_PYTHON_TYPE: Final = frozenset(
    {"Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"}
)
_ERROR_CLASSES: Final[dict[str, type[Exception]]] = {
    "NotImplementedError": NotImplementedError,
    "RuntimeError": RuntimeError,
}
# The complaint of a kernel, with its name and the dtype's.
KERNEL_LACKS_DTYPE: Final = re.compile(r"""^"(.+)" not implemented for '(\w+)'$""")


def error_from_fact(text: str, dtype_name: str) -> Exception:
    """The exception that a text of `facts/refusals.json` describes: `RuntimeError: no {T} here`."""
    class_name, _, message = text.replace("{T}", dtype_name).partition(": ")
    return _ERROR_CLASSES[class_name](message)


def kernel_lacks_dtype_error(kernel: str, dtype_name: str) -> NotImplementedError:
    """The error of a kernel that was not compiled for a dtype."""
    return NotImplementedError(f"\"{kernel}\" not implemented for '{dtype_name}'")


def dtype_mismatch_error(expected: Any, found: Any) -> RuntimeError:
    """The error for a tensor whose dtype is not that of another."""
    return RuntimeError(
        f"expected scalar type {DTYPE_NAMES[expected.dtype]} but found {DTYPE_NAMES[found.dtype]}"
    )


def type_name(tensor: Any) -> str:
    """The text that `tensor.type()` gives: `torch.cuda.FloatTensor` for one on the device.

    Raises RuntimeError for compressed sparse tensors, which have no such type on any device.
    """
    inner = hidden_attribute(tensor, "_virtual_inner")
    if inner is None:
        return str(tensor.type())
    try:
        host_type = str(inner.type())
    except RuntimeError as error:
        raise RuntimeError(str(error).replace("CPU", "CUDA")) from None
    return host_type.replace("torch.", "torch.cuda.", 1)


def legacy_type_name(tensor: Any) -> str:
    """The type of a device tensor as C++ spells it in messages.

    It is `torch.cuda.FloatTensor`, or `CUDABoolType` for a dtype without a Python type of its own.
    """
    dtype_name = DTYPE_NAMES.get(tensor.dtype, "Undefined")
    if dtype_name in _WITH_PYTHON_TYPE:
        return f"torch.cuda.{dtype_name}Tensor"
    return f"CUDA{dtype_name}Type"


# ---- where and how they are told -----------------------------------------------------------------

_PACKAGE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def warn(text: str) -> None:
    """Warn at the line that called the device.

    Python shows a warning once for each line, so the line is the student's, as with C++'s warnings.
    It is the nearest caller outside of this package.
    """
    distance = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        distance += 1
        frame = frame.f_back
    warnings.warn(text, UserWarning, stacklevel=distance)


def without_lazy(error: Exception) -> Exception | None:
    """A new error of the same class that says "cuda" where this one says "lazy".

    "Lazy" is the name that C++ has for our device (see `LAZY` in `state.py`). None where the text
    does not contain it, or the error is neither a RuntimeError nor a TypeError.
    """
    text = str(error)
    if "azy" not in text or not isinstance(error, (RuntimeError, TypeError)):
        return None
    text = re.sub(r"Lazy(\w+)Type", r"torch.cuda.\1Tensor", text)
    return type(error)(text.replace("lazy", "cuda"))
