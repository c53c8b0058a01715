"""Opens and closes the virtual device."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.parallel.comm
import torch.optim
import torch.utils._device

from virtual_cuda.device import generators, state, streams, tensor_api, torch_compat
from virtual_cuda.device.dispatch import mood
from virtual_cuda.device.state import MOST_DEVICES, VirtualGpu, now
from virtual_cuda.device.streams import Streams
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.errors import BadDeviceCount, RealDeviceInUse
from virtual_cuda.ops import autocast, fused, sparse
from virtual_cuda.ops.messages import without_lazy
from virtual_cuda.recording import Recorder
from virtual_cuda.sizes import parse_size
from virtual_cuda.torch_api import creation, cuda_module, imports, modules, profiler, storage, tensor_types
from virtual_cuda.torch_api.creation import Kernels
from virtual_cuda.torch_api.cuda_module import Devices
from virtual_cuda.torch_api.imports import Latecomers
from virtual_cuda.torch_api.patching import claim, patch


class _Registered:
    kernels: Kernels | None = None


_registered: Final = _Registered()


def _patches(gpu: VirtualGpu, recorder: Recorder, dice: generators.Dice) -> Iterator[tuple[Any, str, Any]]:
    """What is replaced while the device is open. In order: a later patch may wrap an earlier one."""
    import torch.optim.optimizer as optimizer
    import torch.optim.swa_utils as swa_utils
    import torch.utils._foreach_utils as foreach

    yield from imports.patches()
    yield from Devices(gpu).patches()
    yield from Streams(gpu).patches()
    yield from streams.patches()
    yield from dice.patches()
    yield from creation.conversion_patches()
    yield from creation.factory_patches()
    yield from fused.composite_patches()
    yield from fused.rnn_patches()
    yield from fused.fused_patches()
    yield from fused.attention_patches()
    yield from fused.composite_placement_patches()
    yield from creation.device_patches()
    yield from storage.saving_patches()
    yield from tensor_types.subclass_patches()
    yield from tensor_types.legacy_patches()
    yield from storage.dlpack_patches()
    yield from cuda_module.patches()
    yield from sparse.patches()
    yield from modules.parallel_patches()
    yield from autocast.patches()
    yield from profiler.patches()
    yield from modules.gradient_patches()
    yield from recorder.patches()
    yield torch.Tensor, "data", tensor_api.DATA
    yield from tensor_types.unbound_patches()
    yield from modules.module_patches()
    yield from torch_compat.patches()
    yield optimizer, "_foreach_supported_types", [*optimizer._foreach_supported_types, *VIRTUAL]
    # Gradient clipping asks here, with the device C++ knows.
    yield foreach, "_foreach_supported_types", [*foreach._foreach_supported_types, *VIRTUAL]
    supported = [*foreach._get_foreach_kernels_supported_devices(), "lazy"]
    for home in (foreach, swa_utils):
        yield home, "_get_foreach_kernels_supported_devices", lambda: supported


@functools.cache
def _real_gpus() -> bool:
    """Whether this process could use a real GPU once the virtual one is closed."""
    return torch.version.cuda is not None and torch.cuda.device_count() > 0


def withdraw() -> None:
    """Where there is a real GPU its own kernels come back. Elsewhere ours may stay: nothing reaches them."""
    if _registered.kernels is not None:
        _registered.kernels.destroy()
        _registered.kernels = None


def _open(gpu: VirtualGpu, undo: contextlib.ExitStack) -> None:
    torch_compat.check()
    if _registered.kernels is None:
        _registered.kernels = Kernels()
    if _real_gpus():
        undo.callback(withdraw)
    torch.utils._device._device_constructors()  # a cached set that must hold the original functions
    recorder, dice = Recorder(gpu.ledger.rows, without_lazy), generators.Dice(gpu)
    with torch_compat.watched():
        late = Latecomers(patch(_patches(gpu, recorder, dice), undo))
    sys.meta_path.insert(0, late)
    undo.callback(late.leave)
    for hook in recorder.hooks():
        undo.callback(hook.remove)
    undo.callback(_close, gpu)
    generators.table.dice = dice
    now.gpu = gpu


def _close(gpu: VirtualGpu) -> None:
    now.gpu = None
    generators.table.dice = None
    state.forget_all()
    tensor_types.forget_all()
    tensor_types.forget()
    autocast.clear_cache()
    for place in gpu.places:
        place.shut = True
        gpu.ledger.peaks[place.label] = place.memory.peak


def _after_fork_in_child() -> None:
    """A forked worker must not touch the device: CUDA cannot be used after a fork."""
    if now.gpu is not None:
        mood.forked = True
        for place in now.gpu.places:
            place.shut = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def virtual_cuda(
    devices: int = 1, memory: int | str = "8 GiB", name: str = "Virtual CUDA device"
) -> Iterator[VirtualGpu]:
    """Give this process virtual CUDA devices for the length of a `with` block."""
    if isinstance(devices, bool) or not isinstance(devices, int) or not 1 <= devices <= MOST_DEVICES:
        raise BadDeviceCount(devices)
    size = parse_size(memory)
    with contextlib.ExitStack() as undo:
        undo.enter_context(claim("virtual CUDA device"))
        if torch.cuda.is_initialized():
            raise RealDeviceInUse()
        gpu = VirtualGpu(devices, size, name)
        _open(gpu, undo)
        yield gpu
