"""The memory that libraries of a GPU take besides the results: their workspaces.

cuBLAS and cuBLASLt keep theirs: torch allocates one of each for every handle and stream, at the
first product there, and frees none of its own accord. A host thread has a handle of its own, and so
has the thread that runs backward passes. cuDNN gets a workspace for the length of one call.

The sizes and their settings are those of torch 2.11, which was measured.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.clock.gpu_models import gpu_named
from virtual_cuda.device.cuda_errors import warn
from virtual_cuda.device.memory import OutOfMemory
from virtual_cuda.device.state import Block, VirtualDevice, VirtualGpu, WorkspaceKey
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import allocate

_KIB: Final = 1 << 10
_LARGE_PRODUCTS: Final = 32 << 20  # the workspace of cuBLAS on a GPU of capability 9.0
_SMALL_PRODUCTS: Final = (8 << 20) + (128 << 10)  # and on all others: ":4096:2:16:8"
_FUSED_PRODUCTS: Final = 1 << 20  # the workspace of cuBLASLt
_SIZE_AND_COUNT: Final = re.compile(r":([0-9]+):([0-9]+)")  # of buffers, the size in KiB

CUBLAS: Final = "cuBLAS"
CUBLASLT: Final = "cuBLASLt"


class Workspaces(NamedTuple):
    """The workspaces that one call of an operator uses."""

    kept: tuple[str, ...] = ()
    """The libraries whose workspace stays: CUBLAS, CUBLASLT."""
    passing: int = 0
    """The bytes of a workspace that is there during the call only."""


Rule = Callable[[Any, Any, Any], Workspaces]  # function(args, kwargs, results)


# ---- handles -------------------------------------------------------------------------------------

_numbers: Final = itertools.count()
_returned_numbers: Final[list[int]] = []  # of handles whose thread has ended
_BACKWARD: Final = -1  # the handle of the thread that runs backward passes on a GPU
# Where this torch lacks it, a backward pass uses the handle of the thread that calls it.
_current_node: Final = find_internal("torch._C._current_autograd_node", otherwise=lambda: None)


class _BlasHandle:
    """A handle of cuBLAS, which another thread gets when its own has ended."""

    def __init__(self) -> None:
        self.number = _returned_numbers.pop() if _returned_numbers else next(_numbers)

    def __del__(self) -> None:
        # At the interpreter's exit the names of this module may be None.
        if _returned_numbers is not None:
            _returned_numbers.append(self.number)


class _HandleOfThread(threading.local):
    """The handle of a thread; made at its first product."""

    handle: _BlasHandle | None = None


_thread: Final = _HandleOfThread()


def _current_handle() -> int:
    """The number of the handle that a product of this thread uses now."""
    if _current_node() is not None:
        return _BACKWARD
    if _thread.handle is None:
        _thread.handle = _BlasHandle()
    return _thread.handle.number


# ---- workspaces that stay ------------------------------------------------------------------------


def cublas_workspace_size(device: VirtualDevice) -> int:
    """How many bytes a new workspace of cuBLAS has on a device.

    `CUBLAS_WORKSPACE_CONFIG` says it, and else the capability; a GPU that was not named is an H200.
    Warns of a setting that cannot be read.
    """
    gpu = device.gpu
    if CUBLAS in gpu.workspace_sizes:
        return gpu.workspace_sizes[CUBLAS]
    capability = (9, 0) if gpu.model is None else gpu.model.capability
    default = _LARGE_PRODUCTS if capability == (9, 0) else _SMALL_PRODUCTS
    setting = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if setting is None:
        return default
    buffers = _SIZE_AND_COUNT.findall(setting)
    if not buffers:
        warn(
            "Could not parse CUBLAS_WORKSPACE_CONFIG, using default workspace size of "
            f"{default} bytes."
        )
        return default
    return sum(int(kibibytes) * _KIB * int(count) for kibibytes, count in buffers)


def cublaslt_workspace_size(device: VirtualDevice) -> int:
    """How many bytes a new workspace of cuBLASLt has on a device.

    `CUBLASLT_WORKSPACE_SIZE` says it, in KiB. It is no larger than that of cuBLAS, unless
    `TORCH_CUBLASLT_UNIFIED_WORKSPACE` is "0".
    """
    size = device.gpu.workspace_sizes.get(CUBLASLT)
    if size is None:
        size = _FUSED_PRODUCTS
        setting = os.environ.get("CUBLASLT_WORKSPACE_SIZE")
        if setting is not None:
            try:
                size = int(setting) * _KIB
            except ValueError:
                warn("invalid CUBLASLT_WORKSPACE_SIZE, using default workspace size of 1024 KiB.")
    if os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "0":
        return size
    return min(size, cublas_workspace_size(device))


def _hold_workspace(device: VirtualDevice, library: str) -> None:
    """Allocate a library's workspace, unless the thread's handle and the stream have one.

    With `TORCH_CUBLASLT_UNIFIED_WORKSPACE` "1", cuBLASLt uses that of cuBLAS. Raises torch's
    OutOfMemoryError.
    """
    gpu = device.gpu
    if library == CUBLASLT and os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "1":
        library = CUBLAS
    stream = gpu.streams.get(device.index, 0)
    key = WorkspaceKey(library, device.index, _current_handle(), stream)
    if key in gpu.workspaces:
        return
    if library == CUBLAS:
        size = cublas_workspace_size(device)
    else:
        size = cublaslt_workspace_size(device)
    _keep_workspace(device, key, size)


def _keep_workspace(device: VirtualDevice, key: WorkspaceKey, size: int) -> None:
    """Allocate a workspace that stays. Raises torch's OutOfMemoryError."""
    block = allocate(device, size)
    device.gpu.workspaces[key] = block
    device.memory.library_bytes += block.size


def clear_product_workspaces(gpu: VirtualGpu) -> None:
    """Free the workspaces of cuBLAS and cuBLASLt on all devices."""
    for key in list(gpu.workspaces):
        if key.library in (CUBLAS, CUBLASLT):
            block = gpu.workspaces.pop(key)
            block.device.memory.library_bytes -= block.size


def use_workspaces(device: VirtualDevice, workspaces: Workspaces) -> None:
    """Allocate the workspaces of one call, and free those that are there during the call only.

    Where such a one does not fit, cuDNN takes a way that needs none. Raises torch's
    OutOfMemoryError for a workspace that stays.
    """
    for library in workspaces.kept:
        _hold_workspace(device, library)
    if workspaces.passing:
        with contextlib.suppress(OutOfMemory):
            Block(device, workspaces.passing)


def plan_with_workspaces(plan: Callable[[Any, Any], Any], rule: Rule) -> Callable[[Any, Any], Any]:
    """The plan of an operator that uses workspaces; `rule` says which."""

    def run_with_workspaces(args: Any, kwargs: Any) -> Any:
        """Give what the plan gives, after its workspaces were allocated."""
        results = plan(args, kwargs)
        device = _device_among(args)
        if device is not None and not device.closed:
            use_workspaces(device, rule(args, kwargs, results))
        return results

    return run_with_workspaces


def _device_among(args: Any) -> VirtualDevice | None:
    """The device of the first device tensor among the arguments; None if there is none."""
    for value in args:
        if type(value) in VIRTUAL:
            device: VirtualDevice = value._virtual_block.device
            return device
    return None


# ---- products ------------------------------------------------------------------------------------

_PRODUCT: Final = Workspaces(kept=(CUBLAS,))
_PRODUCT_WITH_BIAS: Final = Workspaces(kept=(CUBLAS, CUBLASLT))
_NOTHING: Final = Workspaces()
_FUSED_DTYPES: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DISABLE_FUSED: Final = "DISABLE_ADDMM_CUDA_LT"  # "1": cuBLASLt adds no bias


def product_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of a product by cuBLAS; none for an empty result."""
    return _PRODUCT if results.numel() else _NOTHING


def biased_product_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspaces of `addmm`, whose bias cuBLASLt adds where it can."""
    if not results.numel():
        return _NOTHING
    return _PRODUCT_WITH_BIAS if _adds_bias_by_cublaslt(args, kwargs, results) else _PRODUCT


def _adds_bias_by_cublaslt(args: Any, kwargs: Any, results: Any) -> bool:
    """True if a GPU runs this call of `addmm` by cuBLASLt."""
    bias, _, right = args[:3]
    if kwargs.get("beta", 1) != 1 or os.environ.get(_DISABLE_FUSED) == "1":
        return False
    if bias.dim() != 1 or not bias.is_contiguous() or bias.shape[0] != right.shape[1]:
        return False
    if right.dtype not in _FUSED_DTYPES or not results.is_contiguous():
        return False
    is_vector = 1 in right.shape
    return not is_vector


# ---- convolutions --------------------------------------------------------------------------------

# cuDNN computes by tensor cores, which want channels last in memory: images in another layout are
# copied into the workspace, with the weight, and the result is copied out of it. Which engine it
# chooses is its secret; the rules below were read off 279 calls in whole programs on an H200
# (cuDNN 9.19). No others were recorded.
_PARTIAL_SUMS: Final = 2 << 20  # of a weight's gradient, which many blocks of threads add up
_SMALL_WEIGHT: Final = 1 << 20  # bytes; the gradient of a larger one is not split like this
_FEW_CHANNELS: Final = 16
_SHORT_SUM: Final = 100  # products in one element of the result
_MANY_PIXELS: Final = 64 * 64
_HALF: Final = (torch.float16, torch.bfloat16)


class _Convolution(NamedTuple):
    """One convolution as cuDNN sees it."""

    image: torch.Tensor
    weight: torch.Tensor
    result: torch.Tensor
    transposed: bool
    groups: int
    device: VirtualDevice

    @property
    def is_by_tensor_cores(self) -> bool:
        """True if the GPU has tensor cores for the dtype."""
        model = self.device.gpu.model
        if model is None:
            return self.image.dtype in (torch.float32, *_HALF)
        if self.image.dtype in _HALF:
            return model.capability >= (7, 0)
        return self.image.dtype is torch.float32 and model.capability >= (8, 0)

    @property
    def has_channels_last(self) -> bool:
        """True if nothing has to be copied into another layout."""
        for tensor in (self.image, self.weight):
            if tensor.dim() < 4 or tensor.stride(1) != 1 or tensor.shape[1] == 1:
                continue
            return True
        return False

    @property
    def is_pointwise(self) -> bool:
        """True if the kernel has one element, so that the layout of the weight does not matter."""
        return math.prod(self.weight.shape[2:]) == 1

    @property
    def fewest_channels(self) -> int:
        """The number of channels of the image or of the result, whichever is less."""
        return min(self.image.shape[1], self.result.shape[1])

    @property
    def copied_bytes(self) -> int:
        """The bytes of image, result and weight, all of which are copied."""
        nbytes = self.image.nbytes + self.result.nbytes
        return nbytes if self.is_pointwise else nbytes + self.weight.nbytes

    def bytes_for_images(self) -> int:
        """The workspace of the result, or of the gradient of the image."""
        if self.groups > 1 or not self.is_by_tensor_cores or self.has_channels_last:
            return 0
        if self.is_pointwise:
            least = 64 if self.image.dtype in _HALF else 128
            return self.copied_bytes if self.fewest_channels >= least else 0
        channels = self.image.shape[1]
        if channels < _FEW_CHANNELS and math.prod(self.weight.shape[1:]) < _SHORT_SUM:
            return 0
        return self.copied_bytes

    def bytes_for_weight(self) -> int:
        """The workspace of the gradient of the weight."""
        if not self.is_by_tensor_cores:
            return 0
        is_small = self.weight.numel() * 4 <= _SMALL_WEIGHT
        partial_sums = _PARTIAL_SUMS if is_small else 0
        if self.has_channels_last:
            return partial_sums
        if self.groups > 1:
            return self.image.nbytes
        pixels = math.prod(self.image.shape[2:])
        if self.is_pointwise and self.image.dtype is torch.float32 and pixels < _MANY_PIXELS:
            by_image = len(self.image) * self.weight.nbytes
            return min(by_image, self.copied_bytes)
        return self.copied_bytes + partial_sums


def convolution_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of `convolution`."""
    image, weight, _, _, _, _, transposed, _, groups = args
    if image.dim() < 3 or not results.numel() or not torch.backends.cudnn.enabled:
        return _NOTHING
    device = image._virtual_block.device
    call = _Convolution(image, weight, results, transposed, groups, device)
    return Workspaces(passing=call.bytes_for_images())


def convolution_gradient_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of `convolution_backward`.

    The image's gradient is computed first; there is no memory for the weight's at that time.
    """
    gradient, image, weight, _, _, _, _, transposed, _, groups, wanted = args
    if image.dim() < 3 or not gradient.numel() or not torch.backends.cudnn.enabled:
        return _NOTHING
    device = image._virtual_block.device
    call = _Convolution(image, weight, gradient, transposed, groups, device)
    for_image = 0
    for_weight = 0
    if wanted[1]:
        for_weight = call.bytes_for_weight()
    if wanted[0]:
        for_image = call.bytes_for_images()
        if wanted[1]:
            for_image -= weight.nbytes
    return Workspaces(passing=max(for_image, for_weight))


# ---- recurrent layers ----------------------------------------------------------------------------

_PARTS_OF_LAYER: Final = 10  # the workspace, in outputs of one layer: 9.8 and 10.1 on an H200
_DROPOUT: Final = "cuDNN dropout"
_GENERATOR: Final = 24  # bytes that cuDNN's dropout keeps for each thread of the GPU
_THREADS: Final = 2048  # of a multiprocessor, if the model does not say


def recurrent_workspaces(layer_bytes: int, copied_bytes: int) -> Workspaces:
    """The workspace of a recurrent layer in training, either way.

    `layer_bytes` are those of the output of one layer, `copied_bytes` those of data and gradients
    whose batch comes first: cuDNN wants the steps first.
    """
    return Workspaces(passing=_PARTS_OF_LAYER * layer_bytes + copied_bytes)


def hold_dropout_state(device: VirtualDevice) -> None:
    """Allocate the random numbers' state that cuDNN's dropout keeps on a device, once.

    Raises torch's OutOfMemoryError.
    """
    gpu = device.gpu
    key = WorkspaceKey(_DROPOUT, device.index, 0, 0)
    if key in gpu.workspaces:
        return
    model = gpu.model or gpu_named("H200")
    threads = model.properties.get("max_threads_per_multi_processor", _THREADS)
    _keep_workspace(device, key, model.sms * threads * _GENERATOR)
