"""Opens the device that code runs on: virtual CUDA, real CUDA, MPS or the CPU."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
import torch.multiprocessing
import torch.utils.data

from virtual_cuda import ops, torch_api
from virtual_cuda.clock.gpu_models import gpu_named
from virtual_cuda.device.state import MOST_DEVICES, VirtualGpu, now
from virtual_cuda.device_kinds import KIND_TITLES, REAL_GPUS, DeviceChoice
from virtual_cuda.errors import (
    BadDeviceCount,
    NoSuchDevice,
    RealDeviceInUse,
    UnknownClock,
    torch_lacks,
)
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger import Ledger
from virtual_cuda.modelled_time import modelled_time
from virtual_cuda.ops.dispatch import thread_state
from virtual_cuda.patching import (
    Opening,
    Patch,
    Patched,
    around,
    claim,
    kept,
    patch,
    registry,
    torch_patches,
)
from virtual_cuda.real import device_count, real_device
from virtual_cuda.sizes import parse_size
from virtual_cuda.torch_api import compatibility
from virtual_cuda.torch_api.cpp_kernels import register_kernels, withdraw_kernels
from virtual_cuda.torch_api.imports import OriginalImports, few_imports

CLOCKS: Final = ("measured", "modelled")

# Not `torch.multiprocessing.spawn`: the package has a function of that name.
spawned: Final[Any] = sys.modules["torch.multiprocessing.spawn"]
_pinning: Final = find_internal("torch.utils.data._utils.pin_memory")
_real_gpus: Final = functools.cache(torch.cuda.device_count)

# Every module registers its patches of torch when it is imported.
for _package in (ops, torch_api):
    for _module in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)


@contextlib.contextmanager
def virtual_cuda(
    devices: int = 1,
    memory: int | str | None = None,
    name: str | None = None,
    gpu: str | None = None,
    clock: Literal["measured", "modelled"] = "measured",
) -> Iterator[VirtualGpu]:
    """Give this process virtual CUDA devices for the length of a `with` block.

    `memory` is the size of each device, 8 GiB if nothing is said. `gpu` names a GPU of which the
    devices have the properties and the memory; events and the profiler tell its modelled times
    then. With `clock="modelled"`, `time.perf_counter` does so, too, on an H200 if no GPU is named.
    Raises BadDeviceCount, BadSize, UnknownGpu, UnknownClock, AlreadyOpen, RealDeviceInUse where the
    process already uses a real GPU, and TorchUnsupported where this release of torch lacks an
    internal that is needed.
    """
    if clock not in CLOCKS:
        raise UnknownClock(clock, CLOCKS)
    model = (
        gpu_named("H200" if gpu is None else gpu)
        if gpu is not None or clock == "modelled"
        else None
    )
    # Memory and name that were not given are those of the GPU that was named.
    if memory is None:
        memory = model.memory if model is not None and gpu is not None else "8 GiB"
    if name is None:
        name = model.title if model is not None and gpu is not None else "Virtual CUDA device"
    if (
        isinstance(devices, bool)
        or not isinstance(devices, int)
        or not 1 <= devices <= MOST_DEVICES
    ):
        raise BadDeviceCount(devices)
    size = parse_size(memory)
    # From here on things are changed; `undo` takes that back, the last change first.
    with contextlib.ExitStack() as undo:
        undo.enter_context(claim("virtual CUDA device"))
        _watch_forks()
        opened = VirtualGpu(devices, size, name, model)
        patched = _patched(opened)
        undo.callback(_leave, patched)
        undo.callback(_close, opened, patched.opening.closing)
        now.gpu = opened
        if clock == "modelled":
            assert model is not None
            undo.enter_context(modelled_time(model.name))
        yield opened


@contextlib.contextmanager
def keep_patches() -> Iterator[Callable[..., None]]:
    """Leave torch patched between virtual devices, for the length of a `with` block.

    Gives a function that restores torch before that: to be called where other code is to run
    between two devices. Where another kind of device opens, that is done anyway. Called with
    `modules=False`, it leaves those of `nn.Module` in place, which do nothing without a device: to
    restore them takes longer than all others.
    """
    before = kept.keeping
    kept.keeping = True
    with few_imports():
        try:
            yield kept.restore_all
        finally:
            if not before:
                kept.stop()


def _patched(gpu: VirtualGpu) -> Patched:
    """The patches for a device: those that an earlier one has left in place, or new ones.

    Raises RealDeviceInUse where the process uses a real GPU, and TorchUnsupported where this torch
    lacks what the device needs.
    """
    if torch.cuda.is_initialized() and not kept.in_place:
        raise RealDeviceInUse("cuda")
    if not kept.in_place:
        compatibility.check()
    if (patched := kept.take(gpu)) is not None:
        return patched
    with contextlib.ExitStack() as undo:
        opening = Opening(gpu, undo)
        opening.enter(_kernels)
        try:
            patches = patch(registry.patches(opening), undo)
        except (AttributeError, ImportError) as error:
            raise torch_lacks(error) or error from error
        imports = OriginalImports(patches)
        opening.enter(imports.watching)
        opening.enter(functools.partial(_pinning_after, imports))
        return Patched(patches, opening, undo.pop_all())


@contextlib.contextmanager
def _kernels() -> Iterator[None]:
    """Register the device's kernels for the length of a `with` block.

    They stay afterwards, unless there is a real GPU: then torch's own come back.
    """
    register_kernels()
    try:
        yield
    finally:
        # This process may use a real GPU once the virtual one is closed.
        if torch.version.cuda is not None and _real_gpus():
            withdraw_kernels()


_opened: Final = contextlib.ExitStack()  # for as long as a spawned process runs
# What a process of `torch.multiprocessing.spawn` runs.
_wrap: Final = find_internal("torch.multiprocessing.spawn._wrap", "torch.multiprocessing.spawn")


def open_in_child(devices: int, memory: int | str | None, gpu: str | None = None) -> None:
    """Open the device in a spawned process until that ends.

    Does nothing where the process has one.
    """
    if now.gpu is None:
        _opened.enter_context(virtual_cuda(devices, memory, gpu=gpu))
        atexit.register(_opened.close)  # not later, when the modules it needs are gone


@torch_patches()
def _spawning(opening: Opening) -> Iterator[Patch]:
    """Patch `torch.multiprocessing.spawn`, so that its processes open the device first."""

    def opening_too(gpu: VirtualGpu) -> Iterator[Patch]:
        model = None if gpu.model is None else gpu.model.name
        yield (
            spawned,
            "_wrap",
            functools.partial(_run_in_child, len(gpu.devices), gpu.devices[0].memory.total, model),
        )

    opening.again.append(opening_too)
    return opening_too(opening.gpu)


def _run_in_child(devices: int, memory: int, gpu: str | None, *args: Any) -> None:
    """Run what `torch.multiprocessing.spawn` runs in a new process, with the device open."""
    open_in_child(devices, memory, gpu)
    _wrap(*args)


@contextlib.contextmanager
def _pinning_after(imports: OriginalImports) -> Iterator[None]:
    """Make a DataLoader's pinning thread wait for imports, for the length of a `with` block.

    An import of a module of torch puts the patches aside, for all threads.
    """
    with contextlib.ExitStack() as undo:
        patch(
            [around(_pinning, "pin_memory", functools.partial(_after_imports, imports.lock))], undo
        )
        yield


def _after_imports(lock: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `pin_memory` while no import of a module of torch is under way."""
    with lock:
        return original(*args, **kwargs)


def _leave(patched: Patched) -> None:
    """Undo the patches, unless they are kept in place.

    If they are undone, they no longer lead to the device and its ledger.
    """
    kept.leave(patched)
    if not kept.keeping:
        patched.hand_over(VirtualGpu(1, 0, ""))


def _close(gpu: VirtualGpu, closing: list[Callable[[], object]]) -> None:
    """Close the device: runs what its patches want at the end, and notes the peaks of memory."""
    now.gpu = None
    for function in reversed(closing):
        function()
    for device in gpu.devices:
        device.closed = True
        gpu.ledger.peaks[device.label] = device.memory.peak


def _after_fork_in_child() -> None:
    """Close the device in a process that was forked.

    CUDA cannot be used after a fork, so a forked worker must not touch the device.
    """
    if now.gpu is not None:
        thread_state.forked = True
        for device in now.gpu.devices:
            device.closed = True


@functools.cache
def _watch_forks() -> None:
    """Shut the device in every process that is forked from now on; done once per process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True)
class OpenDevice:
    """The device student code is told to use, and the ledger of what it does there."""

    kind: str  # one of DEVICE_KINDS
    device: torch.device  # equal to the device of a tensor there
    ledger: Ledger
    why: str  # one sentence: why this device


def choose_device(kind: str, devices: int = 1) -> tuple[str, str]:
    """The kind of device that is meant, and one sentence that says why.

    For "auto" it is "cuda" if this machine has enough GPUs, else "virtual".
    """
    if kind != "auto":
        return str(kind), f"{KIND_TITLES.get(kind, kind)} was asked for"
    kept.restore()
    found = device_count("cuda")
    if found >= devices:
        return (
            "cuda",
            "a GPU is here, so CUDA itself"
            if found == 1
            else f"{found} GPUs are here, so CUDA itself",
        )
    if found:
        return (
            "virtual",
            f"only {found} of the {devices} GPUs asked for here, so {KIND_TITLES['virtual']}",
        )
    # MPS is not chosen even where there is one: it has neither pinned memory nor peaks.
    return "virtual", f"no GPU here, so {KIND_TITLES['virtual']}"


@contextlib.contextmanager
def open_device(
    kind: DeviceChoice = "auto",
    devices: int = 1,
    memory: int | str | None = None,
    gpu: str | None = None,
) -> Iterator[OpenDevice]:
    """Open a device for the length of a `with` block; `memory` and `gpu` are as for `virtual_cuda`.

    "auto" takes the machine's own GPUs, or virtual ones where there are too few. Raises
    BadDeviceCount, BadSize, UnknownGpu, AlreadyOpen, and NoSuchDevice where this machine does not
    have the device.
    """
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise BadDeviceCount(devices)
    if memory is not None:
        memory = parse_size(memory)
    chosen, why = choose_device(kind, devices)
    if chosen == "virtual":
        with virtual_cuda(devices, memory, gpu=gpu) as opened:
            yield OpenDevice(chosen, torch.device("cuda", 0), opened.ledger, why)
        return
    if chosen in REAL_GPUS and 0 < device_count(chosen) < devices:
        raise NoSuchDevice(chosen, devices, device_count(chosen))
    with real_device(chosen) as real:
        yield OpenDevice(chosen, real.device, real.ledger, why)
