"""In which words does CUDA refuse? Every exception the virtual device raises in CUDA's name is worded here."""

from __future__ import annotations

import re
from typing import Any

import torch

from graders.bench.sizes import format_size
from graders.bench.virtual.memory import OutOfMemory
from graders.bench.virtual.places import Place

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


def device_assert() -> RuntimeError:
    return accelerator_error(
        "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\n" + _LATER
    )


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


def not_on_host(place: Place) -> TypeError:
    return TypeError(
        f"can't convert {place.label} device type tensor to numpy. "
        "Use Tensor.cpu() to copy the tensor to host memory first."
    )


def without_lazy(error: Exception) -> Exception | None:
    """The error in the student's words, where C++ has used its own name for the device."""
    text = str(error)
    if "azy" not in text or not isinstance(error, RuntimeError):
        return None
    return type(error)(re.sub(r"Lazy(\w+)Type", r"torch.cuda.\1Tensor", text).replace("lazy", "cuda"))


# ---- tensors on different devices ------------------------------------------------------------------------------------


def too_many_scalars() -> RuntimeError:
    return RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")


def out_elsewhere(where: str, expected: str) -> RuntimeError:
    return RuntimeError(f"Expected out tensor to have device {expected}, but got {where} instead")


def indices_elsewhere(indexed: str) -> RuntimeError:
    return RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({indexed})")


def value_elsewhere(expected: str, where: str) -> RuntimeError:
    return RuntimeError(f"expected device {expected} but got device {where} for value tensor")


def mask_elsewhere(mask: str, own: str) -> RuntimeError:
    return RuntimeError(f"expected self and mask to be on the same device, but got mask on {mask} and self on {own}")


def masked_fill_elsewhere() -> RuntimeError:
    return RuntimeError("masked_fill_: Expected inputs to be on same device")


def scalar_elsewhere(expected: str, where: str) -> RuntimeError:
    return RuntimeError(f"scalar tensor is expected to be on {expected} but is on {where}")


def sorter_elsewhere(sorter: str, boundaries: str) -> RuntimeError:
    return RuntimeError(
        "torch.searchsorted(): sorter and boundary tensors should have same device type, but got sorter tensor device "
        f"type {sorter} and input value tensor device type {boundaries}"
    )


def solve_elsewhere(right: str, left: str) -> RuntimeError:
    return RuntimeError(f"Expected b and A to be on the same device, but found b on {right} and A on {left} instead.")


def block_elsewhere(first: str, position: int, where: str) -> RuntimeError:
    return RuntimeError(
        "torch.block_diag: input tensors must all be on the same device. "
        f"Input 0 is on device {first} and input {position} is on device {where}"
    )


def segments_elsewhere(name: str) -> RuntimeError:
    return RuntimeError(
        f"Expected data.get_device() == {name}_value.get_device() to be true, but got false.  "
        "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
    )


def convolution_types(image: Any, name: str, other: Any, mkldnn: bool) -> RuntimeError:
    either = f" or input should be a MKLDNN tensor and {name} is a dense tensor" if mkldnn else ""
    return RuntimeError(
        f"Input type ({type_name(image)}) and {name} type ({type_name(other)}) should be the same{either}"
    )


def addcmul_scalar() -> RuntimeError:
    return RuntimeError(
        "CPU Scalar support for tensor1 argument is not supported when calling addcmul on CUDA tensors. However, "
        "CPU Scalar support for tensor2 is supported, please swap your tensor1 and tensor2 terms."
    )


def not_on_cuda(operand: int) -> RuntimeError:
    return RuntimeError(
        'iter.device(arg).is_cuda() INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/native/cuda/Loops.cuh":109, '
        f"please report a bug to PyTorch. argument {operand}: expected a CUDA device but found cpu"
    )


def lengths_elsewhere(lengths: Any) -> RuntimeError:
    kind = type_name(lengths).rpartition(".")[2].removesuffix("Tensor")
    return RuntimeError(
        "'lengths' argument should be a 1D CPU int64 tensor, "
        f"but got {lengths.dim()}D {label_of(lengths)} {kind} tensor"
    )
