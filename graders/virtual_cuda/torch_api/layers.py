"""Functions of layers, losses and transforms that CUDA computes in its own way."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.nn.functional
from torch import nn

from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal, nn_functions
from virtual_cuda.lacking import Lacking
from virtual_cuda.ops import placement
from virtual_cuda.ops.attention import KERNELS, attend, can_use_kernel, number_of_chosen_kernel
from virtual_cuda.ops.fourier import TRANSFORMS, transform_half_precision
from virtual_cuda.ops.layers import has_channels_last
from virtual_cuda.ops.recurrent import RESERVED_PARTS, flatten_parameters, run_cell, run_layer
from virtual_cuda.ops.rms_norm import rms_norm
from virtual_cuda.ops.whole_kernels import (
    call_in_cuda_words,
)
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches

aten: Final = torch.ops.aten
_conv_backends: Final = find_internal("torch._C._ConvBackend", "torch._C._select_conv_backend")


def _compute_eigenvalues(original: Any, input: Any, *, out: Any = None) -> Any:
    """Compute eigenvalues; without gradients the vectors are not computed.

    Replaces `original`, torch's function, for device tensors. Raises what that raises.
    """
    if type(input) not in VIRTUAL or out is not None:
        return original(input, out=out)
    if input.requires_grad and torch.is_grad_enabled():
        return original(input)
    return aten._linalg_eigvals(input)


def _compute_cross_entropy(
    original: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    *rest: Any,
    **named: Any,
) -> Any:
    """Compute a cross entropy by `original`; notes the wait that CUDA has for some.

    Smoothed and weighted, the mean is over the weights of the targets that count, which a mask
    selects. `reduction` 1 is the mean. Raises what `original` raises, and RuntimeError at a wait
    that is refused or tells of a failed kernel.
    """
    out = original(input, target, weight, reduction, *rest, **named)
    if len(rest) > 1:
        smoothing = rest[1]
    else:
        smoothing = named.get("label_smoothing", 0.0)
    is_weighted_mean = weight is not None and reduction == 1
    has_classes = type(target) in VIRTUAL and not target.is_floating_point()
    if is_weighted_mean and smoothing > 0 and has_classes:
        placement.record_waits("masked_select")
    return out


def _make_one_hot(original: Any, tensor: Any, num_classes: int = -1) -> Any:
    """One-hot vectors, made as CUDA makes them.

    `original` is called for tensors of the host, of another dtype or without elements. Without a
    number of classes, the largest is read, for which the host waits. Otherwise their range is not
    checked beforehand, which would wait; `scatter_` asserts. Raises RuntimeError if there is less
    than one class and at a wait that is refused or tells of a failed kernel, torch's
    OutOfMemoryError, and what `original` raises.
    """
    if type(tensor) not in VIRTUAL:
        return original(tensor, num_classes)
    if tensor.dtype is not torch.int64 or tensor.numel() == 0:
        return original(tensor, num_classes)
    if num_classes == -1:
        largest = int(tensor.max().item())
        num_classes = largest + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    shape = (*tensor.shape, num_classes)
    blank = torch.zeros(shape, dtype=torch.int64, device=tensor.device)
    return blank.scatter_(-1, tensor.unsqueeze(-1), 1)


def _compute_ctc_loss(
    original: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute a CTC loss by `original`.

    The mean divides by the lengths of the targets, which CUDA takes to where the losses are; a copy
    is recorded. Raises what `original` raises, and RuntimeError at a wait that is refused or tells
    of a failed kernel.
    """
    if type(log_probs) in VIRTUAL and isinstance(target_lengths, torch.Tensor):
        target_lengths = target_lengths.to(log_probs.device)
    return original(log_probs, targets, input_lengths, target_lengths, *args, **kwargs)


def _choose_convolution_backend(
    original: Any,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    bias_sizes: Any = None,
) -> Any:
    """The name of the kernel that would compute a convolution on a GPU, as C++ has it.

    `torch.backends.cudnn.enabled` decides, too. `original` answers for the host. Raises
    RuntimeError for an empty input that CUDA refuses.
    """
    if type(input) not in VIRTUAL:
        sizes = (stride, padding, dilation, transposed, output_padding, groups)
        return original(input, weight, bias, *sizes, bias_sizes)
    channels = input.shape[1]
    if 0 in input.shape:
        if input.shape[0] and channels:
            raise RuntimeError(
                "Only zero batch or zero channel inputs are supported, "
                f"but got input shape: {list(input.shape)}"
            )
        return _conv_backends.Empty
    # First the depthwise kernels, then cuDNN, then the slow ones.
    dimensions = max(input.dim() - 2, 2)
    uses_cudnn = torch.backends.cudnn.enabled and all(
        more < step for more, step in zip(output_padding, stride, strict=True)
    )
    is_depthwise = channels == groups > 1 and weight.shape[0] % channels == 0
    if is_depthwise and not transposed:
        in_channels_last = has_channels_last(input) or has_channels_last(weight)
        if uses_cudnn and in_channels_last and input.dtype is not torch.float64:
            return _conv_backends.Cudnn
        return getattr(_conv_backends, f"CudaDepthwise{dimensions}d")
    if uses_cudnn:
        if transposed:
            return _conv_backends.CudnnTranspose
        return _conv_backends.Cudnn
    if transposed:
        kind = "SlowTranspose"
    elif dimensions == 3 or max(dilation) > 1:
        kind = "SlowDilated"
    else:
        kind = "Slow"
    return getattr(_conv_backends, f"{kind}{dimensions}d")


# Composites whose own complaints name the device as C++ knows it.
_VF: Final = find_internal("torch._VF")
_NAMING_DEVICES: Final = ("cdist", "gru", "istft", "lstm", "rnn_relu", "rnn_tanh", "stft")
_NAMING_DEVICES_IN_LINALG: Final = (
    "cond",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "tensorinv",
    "tensorsolve",
)


def _patch_overridable(owners: Sequence[Any], name: str, function: Any) -> list[Patch]:
    """Patches that put one function in the place of `name` in all owners.

    It calls `function` with the original first, as `around` does. But a `__torch_function__` is
    asked before, and told of this function. Owners that lack the name are left out.
    """
    owners = [owner for owner in owners if not isinstance(owner, Lacking) and hasattr(owner, name)]
    if not owners:
        return []
    original = getattr(owners[0], name)

    def ask_overrides_or_call(*args: Any, **kwargs: Any) -> Any:
        """Ask `__torch_function__` of the arguments, or call the function if there is none.

        Gives and raises what these do.
        """
        values = (*args, *kwargs.values())
        if torch.overrides.has_torch_function(values):
            this = ask_overrides_or_call
            return torch.overrides.handle_torch_function(this, values, *args, **kwargs)
        return function(original, *args, **kwargs)

    ask_overrides_or_call.__name__ = ask_overrides_or_call.__qualname__ = name
    return [(owner, name, ask_overrides_or_call) for owner in owners]


@torch_patches()
def _layer_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of layers, losses and transforms."""
    both = nn_functions, nn.functional
    yield from _patch_overridable(both, "one_hot", _make_one_hot)
    yield around(nn_functions, "cross_entropy_loss", _compute_cross_entropy)
    yield around(torch._C, "_select_conv_backend", _choose_convolution_backend)
    yield around(find_internal("torch._C._linalg"), "linalg_eigvals", _compute_eigenvalues)
    yield from _patch_overridable((torch.linalg,), "eigvals", _compute_eigenvalues)
    yield from _patch_overridable((torch,), "rms_norm", rms_norm)
    # Recurrent layers, and transforms of half precision.
    for kind in RESERVED_PARTS:
        yield around(_VF, kind, functools.partial(run_layer, kind))
    yield nn.RNNBase, "flatten_parameters", flatten_parameters
    for name in TRANSFORMS:
        transform = functools.partial(transform_half_precision, name)
        yield from _patch_overridable((torch.fft,), name, transform)


@torch_patches()
def _attention_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of attention, and of the questions which kernel would be used for it."""
    both = nn_functions, nn.functional
    yield from _patch_overridable(both, "scaled_dot_product_attention", attend)
    for kernel in KERNELS:
        can_use = functools.partial(can_use_kernel, kernel)
        yield around(torch.backends.cuda, f"can_use_{kernel}_attention", can_use)
    yield torch.backends.cuda, "is_flash_attention_available", lambda: True
    yield around(torch, "_fused_sdp_choice", number_of_chosen_kernel)


@torch_patches(Stage.WRAP)
def _placement_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of functions whose complaints must name the device as CUDA does."""
    for name in _NAMING_DEVICES:
        yield around(_VF, name, call_in_cuda_words)
    yield around(torch, "istft", call_in_cuda_words)
    for name in _NAMING_DEVICES_IN_LINALG:
        yield from _patch_overridable((torch.linalg,), name, call_in_cuda_words)
    for owner in (torch, torch.Tensor):
        for name in ("take_along_dim", "tensor_split"):
            yield around(owner, name, call_in_cuda_words)
    yield around(torch, "ctc_loss", _compute_ctc_loss)
    yield around(_VF, "gru_cell", functools.partial(run_cell, "gru", "hx"))
    yield around(_VF, "lstm_cell", functools.partial(run_cell, "lstm", "cx"))
