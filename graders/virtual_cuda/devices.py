"""Opens the device that code runs on: virtual CUDA, real CUDA, MPS or the CPU."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch

from virtual_cuda import ops, torch_api
from virtual_cuda.clock.gpu_models import Gpu, gpu_named
from virtual_cuda.device.state import MOST_DEVICES, VirtualGpu, claim_device, now
from virtual_cuda.device_kinds import KIND_TITLES, REAL_GPUS, DeviceChoice
from virtual_cuda.errors import (
    BadDeviceCount,
    NoSuchDevice,
    RealDeviceInUse,
    UnknownClock,
    torch_lacks,
)
from virtual_cuda.ledger import Ledger
from virtual_cuda.modelled_time import modelled_time
from virtual_cuda.ops.dispatch import thread_state
from virtual_cuda.patching import DevicePatches, Opening, kept_patches, patch, registry
from virtual_cuda.real import device_count, real_device
from virtual_cuda.sizes import parse_size
from virtual_cuda.torch_api import compatibility
from virtual_cuda.torch_api.cpp_kernels import register_kernels, withdraw_kernels
from virtual_cuda.torch_api.imports import OriginalImports, few_imports

ClockKind = Literal["measured", "modelled"]
CLOCKS: Final = ("measured", "modelled")

# Every module registers its operators or its patches of torch when it is imported.
for _package in (ops, torch_api):
    for _module in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)


# ---- the virtual device --------------------------------------------------------------------------


@contextlib.contextmanager
def virtual_cuda(
    devices: int = 1,
    memory: int | str | None = None,
    name: str | None = None,
    gpu: str | None = None,
    clock: ClockKind = "measured",
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
    model = _modelled_gpu(gpu, clock)
    # Memory and name that were not given are those of the GPU that was named.
    named = None
    if gpu is not None:
        named = model
    if memory is None:
        if named is None:
            memory = "8 GiB"
        else:
            memory = named.memory
    if name is None:
        if named is None:
            name = "Virtual CUDA device"
        else:
            name = named.title
    _require_device_count(devices)
    if devices > MOST_DEVICES:
        raise BadDeviceCount(devices)
    size = parse_size(memory)
    # From here on things are changed; `undo` takes that back, the last change first.
    with contextlib.ExitStack() as undo:
        undo.enter_context(claim_device("virtual CUDA device"))
        _watch_forks()
        opened = VirtualGpu(devices, size, name, model)
        patches = _patches_for(opened)
        undo.callback(_leave_patches, patches)
        undo.callback(_close_device, opened, patches.opening.on_close)
        now.gpu = opened
        if clock == "modelled":
            assert model is not None
            undo.enter_context(modelled_time(model.name))
        yield opened


def _modelled_gpu(name: str | None, clock: ClockKind) -> Gpu | None:
    """The GPU whose times are modelled; None where times are this machine's.

    Raises UnknownGpu.
    """
    if name is not None:
        return gpu_named(name)
    if clock == "modelled":
        return gpu_named("H200")
    return None


def _require_device_count(devices: object) -> None:
    """Raise BadDeviceCount for what is no whole number of at least 1."""
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise BadDeviceCount(devices)


def _close_device(gpu: VirtualGpu, on_close: list[Callable[[], object]]) -> None:
    """Close the device: runs what its patches want at the end, and notes the peaks of memory."""
    now.gpu = None
    for function in reversed(on_close):
        function()
    for device in gpu.devices:
        device.closed = True
        # Without what libraries keep: the ledger tells what a program's tensors take.
        gpu.ledger.peaks[device.label] = device.memory.peak - device.memory.library_bytes
    gpu.workspaces.clear()


# ---- its patches ---------------------------------------------------------------------------------


@contextlib.contextmanager
def keep_patches() -> Iterator[Callable[[], None]]:
    """Leave torch patched between virtual devices, for the length of a `with` block.

    Gives a function that restores torch before that: to be called where other code is to run
    between two devices. Where another kind of device opens, that is done anyway.
    """
    outer = kept_patches.stay_in_place
    kept_patches.stay_in_place = True
    with few_imports():
        try:
            yield kept_patches.undo
        finally:
            if not outer:
                kept_patches.stay_in_place = False
                kept_patches.forget()


def _patches_for(gpu: VirtualGpu) -> DevicePatches:
    """The patches for a device, in place: those of an earlier one, or new ones.

    Raises RealDeviceInUse where the process uses a real GPU, and TorchUnsupported where this torch
    lacks what the device needs.
    """
    if not kept_patches.in_place:
        if torch.cuda.is_initialized():
            raise RealDeviceInUse("cuda")
        compatibility.check_torch()
    patches = kept_patches.take(gpu)
    if patches is None:
        patches = _make_patches(gpu)
    return patches


def _make_patches(gpu: VirtualGpu) -> DevicePatches:
    """Make the patches for a device, and put them in place.

    Raises TorchUnsupported where this torch lacks what they need.
    """
    with contextlib.ExitStack() as undo:
        opening = Opening(gpu, undo, open_in_child)
        opening.enter(_registered_kernels)
        try:
            applied = patch(registry.patches(opening), undo)
        except (AttributeError, ImportError) as error:
            raise torch_lacks(error) or error from error
        opening.enter(OriginalImports(applied).watching)
        return DevicePatches(applied, opening, undo.pop_all())


def _leave_patches(patches: DevicePatches) -> None:
    """Keep the patches for the next device; they are undone unless they are to stay in place.

    If they are undone, they no longer lead to the device and its ledger.
    """
    try:
        if not kept_patches.stay_in_place:
            patches.use_for(VirtualGpu(1, 0, ""))
    finally:
        kept_patches.keep(patches)


@contextlib.contextmanager
def _registered_kernels() -> Iterator[None]:
    """Register the device's kernels for the length of a `with` block.

    They stay afterwards, unless there is a real GPU: then torch's own come back.
    """
    register_kernels()
    try:
        yield
    finally:
        # This process may use a real GPU once the virtual one is closed.
        if torch.version.cuda is not None and _count_real_gpus():
            withdraw_kernels()


# torch's own function: this module is imported while nothing is patched.
_count_real_gpus: Final = functools.cache(torch.cuda.device_count)


# ---- other processes -----------------------------------------------------------------------------

_open_for_process: Final = contextlib.ExitStack()  # for as long as a spawned process runs


def open_in_child(devices: int, memory: int | str | None, gpu: str | None = None) -> None:
    """Open the device in a spawned process until that ends.

    Does nothing where the process has one.
    """
    if now.gpu is None:
        _open_for_process.enter_context(virtual_cuda(devices, memory, gpu=gpu))
        # Not later, when the modules it needs are gone.
        atexit.register(_open_for_process.close)


def _close_in_forked_process() -> None:
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
        os.register_at_fork(after_in_child=_close_in_forked_process)


# ---- any device ----------------------------------------------------------------------------------


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
    kept_patches.undo()
    found = device_count("cuda")
    if found >= devices:
        if found == 1:
            here = "a GPU is here"
        else:
            here = f"{found} GPUs are here"
        return "cuda", f"{here}, so CUDA itself"
    # MPS is not chosen even where there is one: it has neither pinned memory nor peaks.
    missing = "no GPU here"
    if found:
        missing = f"only {found} of the {devices} GPUs asked for here"
    return "virtual", f"{missing}, so {KIND_TITLES['virtual']}"


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
    _require_device_count(devices)
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
