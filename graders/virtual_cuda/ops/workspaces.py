"""The memory that libraries of a GPU take besides the results: their workspaces.

cuBLAS and cuBLASLt keep theirs: torch allocates one of each for every handle and stream, at the
first product there, and frees none of its own accord. A host thread has a handle of its own, and so
has the thread that runs backward passes. cuDNN gets a workspace for the length of one call.

The sizes and their settings are those of torch 2.11, which was measured.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.clock.gpu_models import gpu_named
from virtual_cuda.device.cuda_errors import warn
from virtual_cuda.device.layout import ROUND
from virtual_cuda.device.state import Block, VirtualDevice, VirtualGpu, WorkspaceKey
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ops.dispatch import allocate
from virtual_cuda.recorder import is_in_backward

_KIB: Final = 1 << 10
_LARGE_PRODUCTS: Final = 32 << 20  # the workspace of cuBLAS on a GPU of capability 9.0
_SMALL_PRODUCTS: Final = (8 << 20) + (128 << 10)  # and on all others: ":4096:2:16:8"
_FUSED_PRODUCTS: Final = 1 << 20  # the workspace of cuBLASLt
_UNIFIED: Final = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"
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
    """The number of the handle of cuBLAS that a product of this thread uses now.

    It is -1 in a backward pass. A thread gets its own handle here at its first product, and keeps
    it.
    """
    if is_in_backward():
        return _BACKWARD
    if _thread.handle is None:
        _thread.handle = _BlasHandle()
    return _thread.handle.number


# ---- workspaces that stay ------------------------------------------------------------------------


def _environment_variable(gpu: VirtualGpu, name: str) -> str | None:
    """A variable of the environment, as it was when a library first asked on this GPU.

    It is kept in the GPU's `variables`: libraries ask once, too, and products are many.
    """
    if name not in gpu.variables:
        gpu.variables[name] = os.environ.get(name)
    return gpu.variables[name]


def cublas_workspace_size(device: VirtualDevice) -> int:
    """How many bytes a new workspace of cuBLAS has on a device.

    The size that a program has set goes first, then that of `CUBLAS_WORKSPACE_CONFIG`, and else the
    capability says it; a GPU that was not named is an H200. Warns of a setting that cannot be read.
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

    The size that a program has set goes first, then that of `CUBLASLT_WORKSPACE_SIZE`, in KiB. It
    is no larger than that of cuBLAS, unless `TORCH_CUBLASLT_UNIFIED_WORKSPACE` is "0". Warns of a
    setting that cannot be read.
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
    if _environment_variable(device.gpu, _UNIFIED) == "0":
        return size
    return min(size, cublas_workspace_size(device))


def _hold_workspace(device: VirtualDevice, library: str) -> None:
    """Allocate a library's workspace, unless the thread's handle and the stream have one.

    It is kept in the GPU's `workspaces`. With `TORCH_CUBLASLT_UNIFIED_WORKSPACE` "1", cuBLASLt uses
    that of cuBLAS. Raises torch's OutOfMemoryError.
    """
    gpu = device.gpu
    if library == CUBLASLT and _environment_variable(gpu, _UNIFIED) == "1":
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
    """Allocate a workspace of `size` bytes that stays: in the GPU's `workspaces`, under this key.

    Raises torch's OutOfMemoryError.
    """
    with _taking_for_library(device):
        block = allocate(device, size)
    device.gpu.workspaces[key] = block
    block.memory.library_bytes += block.size


@contextlib.contextmanager
def _taking_for_library(device: VirtualDevice) -> Iterator[None]:
    """Say that what is taken inside the `with` block is a library's; observers want to know."""
    device.memory.for_library = True
    try:
        yield
    finally:
        device.memory.for_library = False


def clear_product_workspaces(gpu: VirtualGpu) -> None:
    """Free the workspaces of cuBLAS and cuBLASLt on all devices."""
    for key in list(gpu.workspaces):
        if key.library in (CUBLAS, CUBLASLT):
            block = gpu.workspaces.pop(key)
            block.memory.library_bytes -= block.size


def use_workspaces(device: VirtualDevice, workspaces: Workspaces) -> None:
    """Allocate the workspaces of one call, and free those that are there during the call only.

    Those that stay are kept in the GPU's `workspaces`, and found there by the next call of this
    thread on this stream. Where one that passes does not fit, cuDNN takes a way that needs none.
    Raises torch's OutOfMemoryError for a workspace that stays.
    """
    for library in workspaces.kept:
        _hold_workspace(device, library)
    if workspaces.passing:
        with contextlib.suppress(torch.cuda.OutOfMemoryError), _taking_for_library(device):
            Block(device, workspaces.passing)


def plan_with_workspaces(plan: Callable[[Any, Any], Any], rule: Rule) -> Callable[[Any, Any], Any]:
    """The plan of an operator that uses workspaces.

    A plan is a function(args, kwargs) that runs the operator; `rule`, a function(args, kwargs,
    results), says which workspaces a call uses.
    """

    def run_with_workspaces(args: Any, kwargs: Any) -> Any:
        """Give what the plan gives, and allocate the workspaces of the call.

        Raises torch's OutOfMemoryError, and what the plan raises.
        """
        results = plan(args, kwargs)
        if results is NotImplemented:  # another class of tensors is asked next
            return results
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


def distance_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspaces of distances that are computed by a product; none for an empty result.

    Both of its factors are copies, with two columns more for sums of squares.
    """
    if not results.numel():
        return _NOTHING
    passing = 0
    for points in args[:2]:
        rows = points.shape[:-1].numel()
        size = rows * (points.shape[-1] + 2) * points.element_size()
        passing += -(-size // ROUND) * ROUND
    return _PRODUCT._replace(passing=passing)


def biased_product_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspaces of `addmm`, whose bias cuBLASLt adds where it can."""
    if not results.numel():
        return _NOTHING
    return _PRODUCT_WITH_BIAS if _adds_bias_by_cublaslt(args, kwargs, results) else _PRODUCT


def _adds_bias_by_cublaslt(args: Any, kwargs: Any, results: Any) -> bool:
    """True if a GPU runs this call of `addmm` by cuBLASLt.

    `args` are the bias and the two factors, `results` is the tensor that the call gave.
    """
    bias, _, right = args[:3]
    if kwargs.get("beta", 1) != 1:
        return False
    if _environment_variable(results._virtual_block.device.gpu, _DISABLE_FUSED) == "1":
        return False
    if bias.dim() != 1 or not bias.is_contiguous() or bias.shape[0] != right.shape[1]:
        return False
    if right.dtype not in _FUSED_DTYPES or not results.is_contiguous():
        return False
    is_vector = 1 in right.shape
    return not is_vector


# ---- solvers -------------------------------------------------------------------------------------

_BYTES_FOR_QR: Final = 3 << 20  # that cuSOLVER takes for one matrix of 48 · 48, or of 64 · 48


def fused_product_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspaces of a product that only cuBLASLt computes; none for an empty result."""
    return _PRODUCT_WITH_BIAS if results.numel() else _NOTHING


def solver_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of a solver that uses cuBLAS, for one matrix and for a batch."""
    return _PRODUCT if args[0].numel() else _NOTHING


def batched_solver_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of a solver that uses cuBLAS for a batch, and cuSOLVER for one matrix."""
    return _PRODUCT if args[0].numel() and args[0].dim() > 2 else _NOTHING


def qr_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of `qr`: by cuBLAS for a batch, and by cuSOLVER for one matrix."""
    if args[0].numel() and args[0].dim() == 2:
        return Workspaces(passing=_BYTES_FOR_QR)
    return batched_solver_workspaces(args, kwargs, results)


# ---- recurrent layers ----------------------------------------------------------------------------

# The workspace is the sum of three parts, read off 13 layers on an H200 (12 LSTM, one GRU; torch
# 2.11, cuDNN 9.19): within 7 % of each.
_BYTES_OF_CELL: Final = 8 << 20  # for each layer and direction
_OUTPUTS_OF_LAYER: Final = 7  # for gates, in outputs of one layer
_OUTPUTS_OF_SMALL_CELL: Final = 16  # more, where all of a small cell stays in the GPU's registers
_SMALL_CELL: Final = 128  # the largest hidden size of such a cell; none in bfloat16
_DROPOUT: Final = "cuDNN dropout"
_GENERATOR: Final = 24  # bytes that cuDNN's dropout keeps for each thread of the GPU
_THREADS: Final = 2048  # of a multiprocessor, if the model does not say


class RecurrentSizes(NamedTuple):
    """What the workspace of a recurrent layer depends on."""

    output: int  # bytes of the output of one layer, in both directions if there are two
    hidden: int  # the hidden size
    layers: int
    directions: int
    dtype: torch.dtype
    is_packed: bool = False  # sequences that each have a length: no cell stays in registers then

    @property
    def is_small(self) -> bool:
        """True if all of a cell stays in the GPU's registers, for all steps."""
        if self.is_packed or self.dtype is torch.bfloat16:
            return False
        return self.hidden <= _SMALL_CELL


def recurrent_workspaces(sizes: RecurrentSizes, copied_bytes: int) -> Workspaces:
    """The workspace of a recurrent layer in training, either way.

    `copied_bytes` are those of data and gradients whose batch comes first: cuDNN wants the steps
    first.
    """
    passing = sizes.layers * sizes.directions * _BYTES_OF_CELL
    passing += _OUTPUTS_OF_LAYER * sizes.output
    if sizes.is_small:
        passing += _OUTPUTS_OF_SMALL_CELL * sizes.output // sizes.directions
    return Workspaces(passing=passing + copied_bytes)


def hold_dropout_state(device: VirtualDevice) -> bool:
    """Allocate the random numbers' state that cuDNN's dropout keeps on a device, once.

    Returns whether it was not there before. Raises torch's OutOfMemoryError.
    """
    gpu = device.gpu
    key = WorkspaceKey(_DROPOUT, device.index, 0, 0)
    if key in gpu.workspaces:
        return False
    model = gpu.model or gpu_named("H200")
    threads = model.properties.get("max_threads_per_multi_processor", _THREADS)
    _keep_workspace(device, key, model.sms * threads * _GENERATOR)
    return True
