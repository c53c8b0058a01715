"""Where both refuse, in which words does CUDA? The CPU kernel's exception is turned into that of CUDA's kernel."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any, Final

import torch

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


def type_name(tensor: Any) -> str:
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
    return RuntimeError(f"Input type ({type_name(given)}) and weight type ({type_name(weight)}) should be the same")


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
                f"but type {type_name(given)} does not equal {type_name(weight)} "
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
