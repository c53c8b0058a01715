"""In which words does CUDA refuse? Every exception the virtual device raises in CUDA's name is worded here."""

from __future__ import annotations

from typing import Any

import torch

from graders.bench.sizes import format_size
from graders.bench.virtual.memory import OutOfMemory
from graders.bench.virtual.places import Place

_LATER = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
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


def device_assert() -> RuntimeError:
    return accelerator_error("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\n" + _LATER)


def forked() -> RuntimeError:
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
        "you must use the 'spawn' start method"
    )


def out_of_memory(error: OutOfMemory, index: int) -> RuntimeError:
    memory = error.place
    limited = ""
    if memory.allowed < memory.total:
        limited = f"{format_size(memory.allowed)} allowed; "
    return torch.cuda.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {format_size(error.requested)}. "
        f"GPU {index} has a total capacity of {format_size(memory.total)} of which {format_size(memory.free)} is free. "
        f"Including non-PyTorch memory, this process has {format_size(memory.reserved)} memory in use. "
        f"{limited}Of the allocated memory {format_size(memory.live)} is allocated by PyTorch, and "
        f"{format_size(memory.reserved - memory.live)} is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
        "for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)"
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


def not_on_host(place: Place) -> TypeError:
    return TypeError(
        f"can't convert {place.label} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def without_lazy(error: Exception) -> Exception | None:
    """The error in the student's words, where C++ has used its own name for the device."""
    text = str(error)
    if "lazy" not in text or not isinstance(error, RuntimeError):
        return None
    return type(error)(text.replace("lazy:", "cuda:").replace("lazy", "cuda"))
