"""Functions of layers, losses and transforms that CUDA computes in its own way."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
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
from virtual_cuda.ops.recurrent import RESERVED_PARTS, flatten_parameters, run_cell, run_layer
from virtual_cuda.ops.rms_norm import rms_norm
from virtual_cuda.ops.whole_kernels import (
    call_in_cuda_words,
)
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches

aten: Final = torch.ops.aten


def _compute_eigenvalues(original: Any, input: Any, *, out: Any = None) -> Any:
    """Compute eigenvalues; without gradients the vectors are not computed."""
    if (
        type(input) in VIRTUAL
        and out is None
        and not (input.requires_grad and torch.is_grad_enabled())
    ):
        return aten._linalg_eigvals(input)
    return original(input, out=out)


def _compute_cross_entropy(
    original: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    *rest: Any,
    **named: Any,
) -> Any:
    """Compute a cross entropy; notes the wait that CUDA has for some.

    Smoothed and weighted, the mean is over the weights of the targets that count, which a mask
    selects.
    """
    out = original(input, target, weight, reduction, *rest, **named)
    smoothed = (
        weight is not None and (rest[1] if len(rest) > 1 else named.get("label_smoothing", 0.0)) > 0
    )
    if smoothed and reduction == 1 and type(target) in VIRTUAL and not target.is_floating_point():
        placement.record_waits("masked_select")
    return out


def _make_one_hot(original: Any, tensor: Any, num_classes: int = -1) -> Any:
    """One-hot vectors, made as CUDA makes them.

    The range of the classes is not checked beforehand, which would wait; `scatter_` asserts. Raises
    RuntimeError if there is less than one class.
    """
    if type(tensor) not in VIRTUAL or tensor.dtype is not torch.int64 or tensor.numel() == 0:
        return original(tensor, num_classes)
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    blank = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
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
    """Compute a CTC loss.

    The mean divides by the lengths of the targets, which CUDA takes to where the losses are.
    """
    if type(log_probs) in VIRTUAL and isinstance(target_lengths, torch.Tensor):
        target_lengths = target_lengths.to(log_probs.device)
    return original(log_probs, targets, input_lengths, target_lengths, *args, **kwargs)


# Composites whose own complaints name the device as C++ knows it.
_VF: Final = find_internal("torch._VF")
_NAMING_DEVICES: Final = ("cdist", "gru", "istft", "lstm", "rnn_relu", "rnn_tanh", "stft")


def _overridable(owners: Sequence[Any], name: str, function: Any) -> list[Patch]:
    """Patches that put one function in the place of `name` in all owners.

    It calls `function` with the original first, as `around` does. But a `__torch_function__` is
    asked before, and told of this function. Owners that lack the name are left out.
    """
    owners = [owner for owner in owners if not isinstance(owner, Lacking) and hasattr(owner, name)]
    if not owners:
        return []
    original = getattr(owners[0], name)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if torch.overrides.has_torch_function(given):
            return torch.overrides.handle_torch_function(call, given, *args, **kwargs)
        return function(original, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return [(owner, name, call) for owner in owners]


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    """The patches of layers, losses, transforms and attention."""
    c_nn = nn_functions
    both = c_nn, nn.functional
    return [
        *_overridable(both, "one_hot", _make_one_hot),
        *(around(_VF, kind, functools.partial(run_layer, kind)) for kind in RESERVED_PARTS),
        (nn.RNNBase, "flatten_parameters", flatten_parameters),
        around(c_nn, "cross_entropy_loss", _compute_cross_entropy),
        around(find_internal("torch._C._linalg"), "linalg_eigvals", _compute_eigenvalues),
        *_overridable((torch.linalg,), "eigvals", _compute_eigenvalues),
        *_overridable((torch,), "rms_norm", rms_norm),
        *chain.from_iterable(
            _overridable((torch.fft,), name, functools.partial(transform_half_precision, name))
            for name in TRANSFORMS
        ),
        *_overridable(both, "scaled_dot_product_attention", attend),
        *(
            around(
                torch.backends.cuda,
                f"can_use_{kernel}_attention",
                functools.partial(can_use_kernel, kernel),
            )
            for kernel in KERNELS
        ),
        (torch.backends.cuda, "is_flash_attention_available", lambda: True),
        around(torch, "_fused_sdp_choice", number_of_chosen_kernel),
    ]


@torch_patches(Stage.WRAP)
def _placement_patches(opening: Opening) -> list[Patch]:
    """The patches of functions whose complaints must name the device as CUDA does."""
    named: list[tuple[Any, str]] = [(_VF, name) for name in _NAMING_DEVICES]
    named += [(torch, "istft")]
    named += [
        (owner, name)
        for owner in (torch, torch.Tensor)
        for name in ("take_along_dim", "tensor_split")
    ]
    return [
        *(around(owner, name, call_in_cuda_words) for owner, name in named),
        around(torch, "ctc_loss", _compute_ctc_loss),
        around(_VF, "gru_cell", functools.partial(run_cell, "gru", "hx")),
        around(_VF, "lstm_cell", functools.partial(run_cell, "lstm", "cx")),
    ]
