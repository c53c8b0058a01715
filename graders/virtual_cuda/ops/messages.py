"""Error messages in CUDA's words."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from virtual_cuda.sizes import format_size

if TYPE_CHECKING:
    from virtual_cuda.device.memory import OutOfMemory
    from virtual_cuda.device.state import Place

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


SPELLED: Final = {
    torch.bfloat16: "BFloat16", torch.bool: "Bool", torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble", torch.float16: "Half", torch.float32: "Float", torch.float64: "Double",
    torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long", torch.uint8: "Byte",
}  # fmt: skip
# cuDNN has a type for these, but no engine; for other integers it has no type either.
CUDNN_KNOWS: Final = (torch.uint8, torch.int8, torch.int32)
# C++ calls tensors of these by their Python type, and all others by backend and dtype: `CUDABFloat16Type`.
_LEGACY: Final = frozenset({"Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"})
_TYPES: Final[dict[str, type[Exception]]] = {"NotImplementedError": NotImplementedError, "RuntimeError": RuntimeError}
_KERNEL: Final = re.compile(r"""^"(.+)" not implemented for '(\w+)'$""")
_TARGET: Final = re.compile(r"expected (?:scalar type Long but found|target dtype to be Long or Byte, but got) (\w+)")


@functools.cache
def facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((pathlib.Path(__file__).with_name("facts") / "refusals.json").read_text())
    return facts


def _names(func: Any) -> list[str]:
    """Under which names the table may know an operator: its in-place and `out=` forms launch the same kernel."""
    name, overload = func._schema.name.partition("::")[2], func._overloadname
    base = name if name.startswith("__") else name.removesuffix("_")
    plain = overload.removesuffix("out").removesuffix("_") or "default"
    return [str(func), f"aten.{base}.{overload}", f"aten.{base}.{plain}"]


def found(table: dict[str, Any], func: Any) -> Any:
    return next((table[name] for name in _names(func) if name in table), None)


def worded(said: str, spelled: str) -> Exception:
    kind, _, text = said.replace("{T}", spelled).partition(": ")
    return _TYPES[kind](text)


def mismatch(expected: Any, found: Any) -> RuntimeError:
    return RuntimeError(f"expected scalar type {SPELLED[expected.dtype]} but found {SPELLED[found.dtype]}")


def legacy_type_name(tensor: Any) -> str:
    """A device tensor's type as C++ spells it in messages: `torch.cuda.FloatTensor`, `CUDABoolType`."""
    spelled = SPELLED.get(tensor.dtype, "Undefined")
    return f"torch.cuda.{spelled}Tensor" if spelled in _LEGACY else f"CUDA{spelled}Type"


def translate(func: Any, inner: Any, kwargs: Any, error: Exception) -> Exception | None:
    """CUDA's exception for a CPU kernel's, or None where both say the same."""
    text = str(error)
    name = func._schema.name.partition("::")[2]
    rule = _RULES.get(name)
    if rule is not None:
        ruled = rule(inner, text)
        if ruled is not None:
            return ruled
    kernel = _KERNEL.match(text)
    spelled = kernel[2] if kernel else _first_dtype(inner)
    spoken = found(facts()["spoken"], func)
    if spoken is not None:
        said = f"{type(error).__name__}: {text}"
        words = spoken.get(said) or spoken.get(re.sub(rf"\b{spelled}\b", "{T}", said))
        if words is not None:
            return worded(words, spelled)
    if kernel:
        cuda = facts()["kernels"].get(kernel[1]) or _usual_name(kernel[1])
        return None if cuda == kernel[1] else NotImplementedError(f"\"{cuda}\" not implemented for '{spelled}'")
    reworded = _reworded(text)
    return None if reworded == text else type(error)(reworded)


def _first_dtype(inner: Any) -> str:
    for value in inner:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                return SPELLED.get(item.dtype, "Undefined")
    return "Undefined"


def _usual_name(cpu: str) -> str:
    """`facts/from_probe.py` leaves out of its table what this rule gives."""
    cuda = cpu.replace("_vml_cpu", "_cuda").replace("_cpu", "_cuda")
    return cuda.replace("_channels_last", "_out_frame") if cuda.startswith("upsample_") else cuda


def _reworded(text: str) -> str:
    """The same sentence with the names that tensors have on the device, and without the CPU's count of arguments."""
    text = re.sub(r"^Argument #\d+: (?=Padding size)", "", text)
    text = re.sub(r"\btorch\.(?=[A-Z]\w*Tensor\b)", "torch.cuda.", text)
    text = re.sub(r"\bCPU(?=[A-Z]\w*Type\b)", "CUDA", text)
    text = text.removesuffix(" or input should be a MKLDNN tensor and weight is a dense tensor")
    return text.replace("expected m1 and m2 to have", "expected mat1 and mat2 to have")


def _convolution_words(inner: Any, text: str) -> Exception | None:
    given, weight = inner[0], inner[1]
    if given.dtype is weight.dtype or ("scalar type" not in text and "Input type" not in text):
        return None
    return RuntimeError(
        f"Input type ({legacy_type_name(given)}) and weight type ({legacy_type_name(weight)}) should be the same"
    )


def _batch_norm_words(inner: Any, text: str) -> Exception | None:
    given, weight, training = inner[0], inner[1], inner[5]
    spelled = SPELLED[given.dtype]
    mixed = weight is not None and weight.dtype is not given.dtype
    if '"batch_norm"' not in text and "mixed dtype" not in text:
        return None
    if weight is not None and given.dim() >= 3:  # cuDNN's, which is asked for images and sequences
        if mixed:
            return RuntimeError(
                "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'weight'; "
                f"but type {legacy_type_name(given)} does not equal {legacy_type_name(weight)} "
                "(while checking arguments for cudnn_batch_norm)"
            )
        if given.dtype in CUDNN_KNOWS:
            return RuntimeError(f"TensorDescriptor does not support {spelled}")
        return RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {spelled}")
    if given.dtype.is_floating_point:
        return mismatch(given, weight) if mixed else None
    kernel = "batch_norm_stats_cuda" if training else "batch_norm_invert_std_cuda"
    return NotImplementedError(f"\"{kernel}\" not implemented for '{spelled}'")


def _layer_norm_words(inner: Any, text: str) -> Exception | None:
    if "mixed dtype" not in text:
        return None
    given, weight = inner[0], next(value for value in inner[2:4] if value is not None)
    if given.dtype.is_floating_point:
        return mismatch(given, weight)
    return NotImplementedError(f"\"LayerNormKernelImpl\" not implemented for '{SPELLED[given.dtype]}'")


def _nll_loss_words(inner: Any, text: str) -> Exception | None:
    target, kernel = _TARGET.search(text), _KERNEL.match(text)
    if not (target or kernel):
        return None
    name = "nll_loss_forward_no_reduce_cuda_kernel"
    if inner[3] != 0 or inner[0].dim() == 1:
        name = f"nll_loss_forward_reduce_cuda_kernel_{inner[0].dim()}d"
    if target:
        return NotImplementedError(f"\"{name}_index\" not implemented for '{target[1]}'")
    return NotImplementedError(f"\"{name}\" not implemented for '{kernel[2]}'" if kernel else text)


def _nll_loss2d_words(inner: Any, text: str) -> Exception | None:
    target = _TARGET.search(text)
    return RuntimeError(f"expected scalar type Long but found {target[1]}") if target else None


_RULES: Final[dict[str, Callable[[Any, str], Exception | None]]] = {
    "_native_batch_norm_legit": _batch_norm_words,
    "convolution": _convolution_words,
    "native_batch_norm": _batch_norm_words,
    "native_layer_norm": _layer_norm_words,
    "nll_loss2d_forward": _nll_loss2d_words,
    "nll_loss_forward": _nll_loss_words,
}
