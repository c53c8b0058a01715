"""Error messages in CUDA's words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import torch

from virtual_cuda.sizes import format_size

if TYPE_CHECKING:
    from virtual_cuda.device.state import OutOfMemory

_LATER = (
    "CUDA kernel errors might be asynchronously reported at some other API call, "
    "so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def accelerator_error(text: str) -> RuntimeError:
    kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(text)  # type: ignore[no-any-return]


def invalid_ordinal() -> RuntimeError:
    return accelerator_error(
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n" + _LATER
    )


def cuda_error(text: str, name: str) -> RuntimeError:
    """What torch makes of an error of CUDA, which has a text and a name."""
    return accelerator_error(
        f"CUDA error: {text}\nSearch for `cudaError{name}' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\n" + _LATER
    )


def device_assert() -> RuntimeError:
    return cuda_error("device-side assert triggered", "Assert")


def forked() -> RuntimeError:
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
        "you must use the 'spawn' start method"
    )


def out_of_memory(error: OutOfMemory, index: int) -> RuntimeError:
    memory = error.place
    limited = f"{format_size(memory.allowed)} allowed; " if memory.allowed < memory.total else ""
    return torch.cuda.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {format_size(error.requested)}. "
        f"GPU {index} has a total capacity of {format_size(memory.total)} of which {format_size(memory.free)} is free. "
        f"Including non-PyTorch memory, this process has {format_size(memory.reserved)} memory in use. "
        f"{limited}Of the allocated memory {format_size(memory.live)} is allocated by PyTorch, and "
        f"{format_size(memory.reserved - memory.live)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)"
    )


def two_devices(first: str, second: str) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def argument_elsewhere(argument: str, where: str, others: str, method: str) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {argument} is on {where}, different from other "
        f"tensors on {others} (when checking argument in method {method})"
    )


def type_name(tensor: Any) -> str:
    """`torch.cuda.FloatTensor`, as CUDA names the type of a tensor."""
    inner = getattr(tensor, "_inner", None)
    if inner is None:
        return str(tensor.type())
    return str(inner.type()).replace("torch.", "torch.cuda.", 1)


def label_of(tensor: Any) -> str:
    """`cuda:0` or `cpu`."""
    return str(tensor.device)


def not_on_host(label: str) -> TypeError:
    return TypeError(
        f"can't convert {label} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def without_lazy(error: Exception) -> Exception | None:
    """The error in the student's words, where C++ has used its own name for the device."""
    text = str(error)
    if "azy" not in text or not isinstance(error, RuntimeError):
        return None
    return type(error)(re.sub(r"Lazy(\w+)Type", r"torch.cuda.\1Tensor", text).replace("lazy", "cuda"))


# ---- dtypes ----------------------------------------------------------------------------------------------------------

SPELLED: Final = {
    torch.bfloat16: "BFloat16", torch.bool: "Bool", torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble", torch.float16: "Half", torch.float32: "Float", torch.float64: "Double",
    torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long", torch.uint8: "Byte",
}  # fmt: skip
# C++ calls tensors of these by their Python type, and all others by backend and dtype: `CUDABFloat16Type`.
_LEGACY: Final = frozenset({"Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"})
_TYPES: Final[dict[str, type[Exception]]] = {"NotImplementedError": NotImplementedError, "RuntimeError": RuntimeError}
KERNEL: Final = re.compile(r"""^"(.+)" not implemented for '(\w+)'$""")


def worded(said: str, spelled: str) -> Exception:
    """The exception that a text of `facts/refusals.json` describes, for the dtype spelled so."""
    kind, _, text = said.replace("{T}", spelled).partition(": ")
    return _TYPES[kind](text)


def not_implemented(kernel: str, spelled: str) -> NotImplementedError:
    return NotImplementedError(f"\"{kernel}\" not implemented for '{spelled}'")


def mismatch(expected: Any, found: Any) -> RuntimeError:
    return RuntimeError(f"expected scalar type {SPELLED[expected.dtype]} but found {SPELLED[found.dtype]}")


def legacy_type_name(tensor: Any) -> str:
    """A device tensor's type as C++ spells it in messages: `torch.cuda.FloatTensor`, `CUDABoolType`."""
    spelled = SPELLED.get(tensor.dtype, "Undefined")
    return f"torch.cuda.{spelled}Tensor" if spelled in _LEGACY else f"CUDA{spelled}Type"
