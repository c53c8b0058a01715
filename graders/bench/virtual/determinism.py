"""Which operators does CUDA refuse once `torch.use_deterministic_algorithms(True)` is set?

They add atomically, in whatever order the threads arrive. The CPU's kernels do not, and so do not refuse. The names
are those of ATen's CUDA functions; operators in which both alert, such as `max_unpool2d`, need no entry.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

CALLERS: Final = {
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "bincount": "_bincount_cuda",
    "cumsum": "cumsum_cuda_kernel",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
    "histc": "_histc_cuda",
    "nll_loss2d_backward": "nll_loss2d_backward_out_cuda_template",
    "nll_loss2d_forward": "nll_loss2d_forward_out_cuda_template",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad2d_backward": "reflection_pad2d_backward_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
}
_REFUSED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can "
    "turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's acceptable "
    "for your application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help us "
    "prioritize adding deterministic support for this operation."
)
_WARNED: Final = (
    "{} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True, "
    "warn_only=True)'. You can file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
    "deterministic support for this operation."
)


# Whole numbers add up to the same in any order.
_WHOLE: Final = ("bincount", "cumsum")


def _fractions(args: Any, kwargs: Any) -> bool:
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in given)


def of(func: Any) -> Callable[[Any, Any], None] | None:
    """A function(args, kwargs) that alerts as CUDA does, or None for an operator that is deterministic on both."""
    name = func._schema.name.partition("::")[2]
    caller = CALLERS.get(name)
    if name == "median" and func._overloadname.startswith("dim"):
        caller = "median CUDA with indices output"
    if caller is None:
        return None

    def alert(args: Any, kwargs: Any) -> None:
        if not torch.are_deterministic_algorithms_enabled():
            return
        if name in _WHOLE and not _fractions(args, kwargs):
            return
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(_REFUSED.format(caller))
        warnings.warn(_WARNED.format(caller), UserWarning, stacklevel=4)

    return alert
