"""Loss functions."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from virtual_cuda.device.messages import KERNEL, SPELLED, label_of, not_implemented, two_devices
from virtual_cuda.ops.elementwise import HALF, widened
from virtual_cuda.ops.placement import Call, anywhere, compare, takes_no_number
from virtual_cuda.ops.registry import ALLOWED, name_of, operator
from virtual_cuda.ops.syncs import on_device, on_host

_TARGET: Final = re.compile(r"expected (?:scalar type Long but found|target dtype to be Long or Byte, but got) (\w+)")


def _nll_loss_words(inner: Any, text: str) -> Exception | None:
    target, kernel = _TARGET.search(text), KERNEL.match(text)
    if not (target or kernel):
        return None
    name = "nll_loss_forward_no_reduce_cuda_kernel"
    if inner[3] != 0 or inner[0].dim() == 1:
        name = f"nll_loss_forward_reduce_cuda_kernel_{inner[0].dim()}d"
    if target:
        return not_implemented(f"{name}_index", target[1])
    return not_implemented(name, kernel[2]) if kernel else None


def _nll_loss2d_words(inner: Any, text: str) -> Exception | None:
    target = _TARGET.search(text)
    return RuntimeError(f"expected scalar type Long but found {target[1]}") if target else None


def _mse_loss(call: Call) -> Any:
    """The reduction writes where the first argument is, and meets the other device there."""
    base, target = call.given["self"], call.given["target"]
    if on_host(base) and base.dim() == 0:
        raise two_devices(label_of(base), label_of(target))
    return None


def _mse_loss_backward(args: Any, kwargs: Any) -> None:
    """The loss of two dtypes has the wider one, and CUDA does not cast its gradient back."""
    gradient, given, target = args[:3]
    for tensor in (target, gradient):
        if tensor.dtype is not given.dtype:
            raise RuntimeError(f"Found dtype {SPELLED[tensor.dtype]} but expected {SPELLED[given.dtype]}")


def _ctc_loss(call: Call) -> Any:
    """CUDA reads the lengths on the host, wherever they are; cuDNN wants even the targets there."""
    given, name = call.given, name_of(call.func)
    targets, backward = given["targets"], name.endswith("backward")
    names = ["grad"] * backward + ["log_probs", "targets"] + ["neg_log_likelihood", "log_alpha"] * backward
    for_cudnn = targets.dtype is torch.int32 and targets.dim() == 1 and given.get("blank", 0) == 0
    if for_cudnn and on_host(targets):
        names.remove("targets")
    compare(f"wrapper_CUDA__{name}", [(n, n) for n in names], given)
    return ALLOWED


def _ctc_loss_waits(given: dict[str, Any]) -> int:
    """Lengths in tensors are read on the host; they and the offsets go to the device; targets there are looked at."""
    lengths = given["input_lengths"]
    return 3 + on_device(given["targets"]) + isinstance(lengths, torch.Tensor) + 3 * on_device(lengths)


_IN_SINGLE: Final = widened(HALF, torch.float32)

operator("nll_loss_forward", words=_nll_loss_words, asserts=True)
operator(
    "nll_loss2d_forward", words=_nll_loss2d_words, asserts=True, nondeterministic="nll_loss2d_forward_out_cuda_template"
)
operator("nll_loss_backward", asserts=True)
operator("nll_loss2d_backward", asserts=True, nondeterministic="nll_loss2d_backward_out_cuda_template")
operator("multi_margin_loss", "multilabel_margin_loss_forward", asserts=True, emulate=_IN_SINGLE)
operator("multi_margin_loss_backward", "multilabel_margin_loss_backward", emulate=_IN_SINGLE)
operator("binary_cross_entropy", asserts=True, autocast="banned")
operator("mse_loss", placement=_mse_loss)
operator("mse_loss_backward", refuse=_mse_loss_backward)
operator("smooth_l1_loss", placement=takes_no_number("weight", "tensor2"))
operator("_ctc_loss", placement=_ctc_loss, waits=("ctc_loss", _ctc_loss_waits))
operator("_ctc_loss_backward", placement=_ctc_loss, waits=("ctc_loss", 3), nondeterministic="ctc_loss_backward_gpu")
operator("_ctc_loss_backward.Tensor", waits=("ctc_loss", 5))
operator("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", placement=anywhere)
operator("_pdist_backward", emulate=_IN_SINGLE)
