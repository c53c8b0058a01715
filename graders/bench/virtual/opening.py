"""How is a virtual device opened and closed, with nothing left behind?"""

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

from graders.bench.patching import claim, patch
from graders.bench.recording import Recorder
from graders.bench.sizes import parse_size
from graders.bench.virtual import (
    attention,
    autocast,
    composite_places,
    composites,
    compressed,
    conversions,
    creation,
    footing,
    fused,
    gradients,
    graphs,
    interchange,
    legacy,
    modules,
    numbered,
    nvtx,
    parallel,
    pinning,
    profiling,
    randomness,
    rnn,
    rules,
    saving,
    scripting,
    subclasses,
    surface,
    unbound,
)
from graders.bench.virtual.device_api import Devices
from graders.bench.virtual.dispatch import mood
from graders.bench.virtual.factories import Kernels
from graders.bench.virtual.latecomers import Latecomers
from graders.bench.virtual.places import MOST_DEVICES, VirtualGpu, now
from graders.bench.virtual.streams import Streams
from graders.bench.virtual.tensor import VIRTUAL
from graders.bench.virtual.wording import without_lazy
from graders.errors import BadDeviceCount, RealDeviceInUse


class _Registered:
    kernels: Kernels | None = None


_registered: Final = _Registered()


def _patches(gpu: VirtualGpu, recorder: Recorder, dice: randomness.Dice) -> Iterator[tuple[Any, str, Any]]:
    """What is replaced while the device is open. In order: a later patch may wrap an earlier one."""
    import torch.optim.optimizer as optimizer
    import torch.optim.swa_utils as swa_utils
    import torch.utils._foreach_utils as foreach

    yield from scripting.patches()
    yield from Devices(gpu).patches()
    yield from Streams(gpu).patches()
    yield from graphs.patches()
    yield from dice.patches()
    yield from conversions.patches()
    yield from creation.patches()
    yield from composites.patches()
    yield from rnn.patches()
    yield from fused.patches()
    yield from attention.patches()
    yield from composite_places.patches()
    yield from numbered.patches()
    yield from saving.patches()
    yield from subclasses.patches()
    yield from legacy.patches()
    yield from interchange.patches()
    yield from nvtx.patches()
    yield from compressed.patches()
    yield from parallel.patches()
    yield from autocast.patches()
    yield from profiling.patches()
    yield from gradients.patches()
    yield from recorder.patches()
    yield torch.Tensor, "data", surface.DATA
    yield from unbound.patches()
    yield from modules.patches()
    yield from rules.patches()
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
    footing.check()
    if _registered.kernels is None:
        _registered.kernels = Kernels()
    if _real_gpus():
        undo.callback(withdraw)
    torch.utils._device._device_constructors()  # a cached set that must hold the original functions
    recorder, dice = Recorder(gpu.ledger.rows, without_lazy), randomness.Dice(gpu)
    with footing.watched():
        late = Latecomers(patch(_patches(gpu, recorder, dice), undo))
    sys.meta_path.insert(0, late)
    undo.callback(late.leave)
    for hook in recorder.hooks():
        undo.callback(hook.remove)
    undo.callback(_close, gpu)
    randomness.table.dice = dice
    now.gpu = gpu


def _close(gpu: VirtualGpu) -> None:
    now.gpu = None
    randomness.table.dice = None
    pinning.forget_all()
    subclasses.forget_all()
    legacy.forget()
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
