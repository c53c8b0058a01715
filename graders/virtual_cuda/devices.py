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
from virtual_cuda.device.state import (
    MOST_DEVICES,
    VirtualGpu,
    claim_device,
    now,
    without_claim,
)
from virtual_cuda.device_kinds import KIND_TITLES, REAL_GPUS, DeviceChoice
from virtual_cuda.errors import (
    BadDeviceCount,
    BadDeviceOption,
    NoSuchDevice,
    NotOpen,
    RealDeviceInUse,
    UnknownClock,
    torch_lacks,
)
from virtual_cuda.ledger import Ledger
from virtual_cuda.modelled_time import modelled_time
from virtual_cuda.ops.dispatch import thread_state
from virtual_cuda.ops.known_results import following_values
from virtual_cuda.patching import (
    DevicePatches,
    Opening,
    kept_patches,
    patch,
    registry,
    without_patches,
)
from virtual_cuda.real import device_count, real_device
from virtual_cuda.sizes import parse_size
from virtual_cuda.torch_api import compatibility
from virtual_cuda.torch_api.cpp_kernels import register_kernels, withdraw_kernels
from virtual_cuda.torch_api.imports import OriginalImports, few_imports
from virtual_cuda.torch_api.no_values import host_without_values

ClockKind = Literal["measured", "modelled"]
CLOCKS: Final = ("measured", "modelled")

# Every module registers its operators or its patches of torch when it is imported.
for _package in (ops, torch_api):
    for _module in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)


# ---- the virtual device --------------------------------------------------------------------------


def virtual_cuda(
    devices: int = 1,
    memory: int | str | None = None,
    name: str | None = None,
    gpu: str | None = None,
    clock: ClockKind = "measured",
    values: bool = True,
) -> VirtualCuda:
    """Virtual CUDA devices for this process, for a `with` block, a function, or until `stop`.

    `memory` is the size of each device, 8 GiB if nothing is said. `gpu` names a GPU of which the
    devices have the properties and the memory; events and the profiler tell its modelled times
    then. With `clock="modelled"`, `time.perf_counter` does so, too, on an H200 if no GPU is named.
    With `values=False` nothing is computed: tensors of the devices and large ones of the host have
    a shape and no values, and what is read of them is 0; `assumptions` of the GPU tells where.
    Nothing happens before the `with` block, or `start`: these raise BadDeviceCount, BadSize,
    BadDeviceOption, UnknownGpu, UnknownClock, AlreadyOpen, RealDeviceInUse where the process
    already uses a real GPU, and TorchUnsupported where this release of torch lacks an internal that
    is needed.
    """
    return VirtualCuda(devices, memory, name, gpu, clock, values)


class VirtualCuda(contextlib.ContextDecorator, contextlib.AbstractContextManager["VirtualGpu"]):
    """Opens virtual devices and closes them: what `virtual_cuda(...)` gives.

    `with` opens them for a block, `@` for each call of a function; `start` and `stop` are for
    `setUp` and `tearDown`.
    """

    def __init__(
        self,
        devices: int,
        memory: int | str | None,
        name: str | None,
        gpu: str | None,
        clock: ClockKind,
        values: bool,
    ) -> None:
        """Note the arguments of `virtual_cuda`; nothing is checked or opened yet."""
        self._devices = devices
        self._memory = memory
        self._name = name
        self._gpu = gpu
        self._clock = clock
        self._values = values
        self._undo: contextlib.ExitStack | None = None

    def start(self) -> VirtualGpu:
        """Open the devices, and return them; `stop` closes them.

        torch is patched meanwhile. Raises BadDeviceCount, BadSize, BadDeviceOption, UnknownGpu,
        UnknownClock, AlreadyOpen, RealDeviceInUse where the process already uses a real GPU, and
        TorchUnsupported where this release of torch lacks what is needed.
        """
        with contextlib.ExitStack() as undo:
            opened = undo.enter_context(self._open())
            self._undo = undo.pop_all()
        return opened

    def stop(self) -> None:
        """Close the devices: torch is as before, unless its patches are to stay in place.

        Raises NotOpen if none were open.
        """
        undo = self._undo
        if undo is None:
            raise NotOpen("cuda")
        self._undo = None
        undo.close()

    def __enter__(self) -> VirtualGpu:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def _open(self) -> Iterator[VirtualGpu]:
        """Open the devices for the length of a `with` block.

        torch is patched meanwhile, forks are watched, and Python's clocks tell modelled time if
        that was asked for. An open device that gives way is paused. Raises BadDeviceCount, BadSize,
        BadDeviceOption, UnknownGpu, UnknownClock, AlreadyOpen, RealDeviceInUse, TorchUnsupported
        and DuplicatePatch; without values also TorchLacks.
        """
        if self._clock not in CLOCKS:
            raise UnknownClock(self._clock, CLOCKS)
        model = _modelled_gpu(self._gpu, self._clock)
        # Memory and name that were not given are those of the GPU that was named.
        named = None
        if self._gpu is not None:
            named = model
        memory = self._memory
        if memory is None:
            memory = "8 GiB" if named is None else named.memory
        name = self._name
        if name is None:
            name = "Virtual CUDA device" if named is None else named.title
        if not isinstance(name, str):
            raise BadDeviceOption("name", name, "a text")
        if not isinstance(self._values, bool):
            raise BadDeviceOption("values", self._values, "True or False")
        _require_device_count(self._devices)
        if self._devices > MOST_DEVICES:
            raise BadDeviceCount(self._devices)
        size = parse_size(memory)
        # From here on things are changed; `undo` takes that back, the last change first.
        with contextlib.ExitStack() as undo:
            outer = now.gpu
            if outer is not None and outer.session is not None and outer.session.gives_way:
                undo.enter_context(outer.paused())
            undo.enter_context(claim_device("virtual CUDA device"))
            _watch_forks()
            opened = VirtualGpu(self._devices, size, name, model, values=self._values)
            session = _OpenSession(_patches_for(opened), self._clock)
            opened.session = session
            undo.callback(session.close, opened)
            now.gpu = opened
            if not self._values:
                undo.enter_context(host_without_values())
                undo.enter_context(following_values())
            undo.enter_context(session.modelled_time_of(opened))
            yield opened


class _OpenSession:
    """What goes with an open virtual GPU: its patches of torch, which can be set aside."""

    def __init__(self, patches: DevicePatches, clock: ClockKind) -> None:
        """Take over patches that are in place for the GPU that opens."""
        self._patches = patches
        self._clock = clock
        # Whether a device that opens meanwhile pauses this one, instead of being refused.
        self.gives_way = False

    def modelled_time_of(self, gpu: VirtualGpu) -> contextlib.AbstractContextManager[object]:
        """A `with` block in which Python's clocks tell modelled time, if that was asked for."""
        if self._clock != "modelled":
            return contextlib.nullcontext()
        assert gpu.model is not None
        return modelled_time(gpu.model.name)

    def close(self, gpu: VirtualGpu) -> None:
        """Close the devices, and undo their patches unless these are to stay in place.

        No GPU is open from then on. What the patches want at the end is done, the peaks of memory
        are noted in the ledger, and the memory of libraries is freed.
        """
        try:
            _close_device(gpu, self._patches.opening.on_close)
        finally:
            _leave_patches(self._patches)

    def switch_to(self, gpu: VirtualGpu) -> None:
        """Let another GPU take over the devices, and be the one that is open.

        Memory and records are its own from now on, and so is what patches hold for a device.
        """
        gpu.session = self
        gpu.use_devices()
        now.gpu = gpu
        self._patches.use_for(gpu)

    @contextlib.contextmanager
    def pause(self, gpu: VirtualGpu) -> Iterator[None]:
        """Set the patches of an open GPU aside for the length of a `with` block.

        No GPU is open then, and its tensors raise DevicePaused; another device can be opened. At
        the end everything is put back. Raises RealDeviceInUse there if a real GPU was used
        meanwhile, and TorchUnsupported or DuplicatePatch if the patches had to be made anew.
        """
        now.gpu = None
        gpu.is_paused = True
        for device in gpu.devices:
            device.closed = True
        kept_patches.keep(self._patches)  # so that another device can use them
        kept_patches.undo()
        try:
            with without_claim(), without_patches():
                yield
        finally:
            self._patches = _patches_for(gpu)
            gpu.is_paused = False
            gpu.use_devices()
            now.gpu = gpu


@contextlib.contextmanager
def take_over_devices(outer: VirtualGpu) -> Iterator[VirtualGpu]:
    """Let a new GPU take over the devices of an open one, for the length of a `with` block.

    It begins with an empty ledger, with no memory in use, and with all settings of a device that
    has just been opened. Tensors from before stay usable, and are counted where they were made.
    Where the outer GPU was opened with the modelled clock, Python's clocks tell the new one's time.
    At the end its peaks are noted in its ledger, and the devices are the outer GPU's again. Gives
    the new GPU. Raises NotOpen where `outer` is not open.
    """
    session = outer.session
    if not isinstance(session, _OpenSession) or now.gpu is not outer:
        raise NotOpen("cuda")
    total = outer.devices[0].memory.total
    inner = VirtualGpu(
        len(outer.devices), total, outer.name, outer.model, of=outer, values=outer.values
    )
    session.switch_to(inner)
    try:
        with session.modelled_time_of(inner):
            yield inner
    finally:
        inner.note_peaks()
        inner.workspaces.clear()
        session.switch_to(outer)


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
    """Close the device: run what its patches want at the end, and note the peaks of memory.

    `on_close` are these functions; the last one added is called first. No GPU is open afterwards,
    and the memory of libraries is freed.
    """
    now.gpu = None
    for function in reversed(on_close):
        function()
    for device in gpu.devices:
        device.closed = True
    gpu.note_peaks()
    gpu.workspaces.clear()


# ---- its patches ---------------------------------------------------------------------------------


@contextlib.contextmanager
def keep_patches() -> Iterator[Callable[[], None]]:
    """Leave torch patched between virtual devices, for the length of a `with` block.

    Gives a function that restores torch before that: to be called where other code is to run
    between two devices. Where another kind of device opens, that is done anyway. Inside, torch does
    not import what few programs need. At the end the patches are undone and forgotten, unless that
    is inside of another such block.
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

    Raises RealDeviceInUse where the process uses a real GPU, TorchUnsupported where this torch
    lacks what the device needs, and DuplicatePatch.
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
    """Make the patches for a device, put them in place, and return them.

    Raises TorchUnsupported where this torch lacks what they need, and DuplicatePatch where two of
    them have the same target.
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

    If they are undone, they no longer lead to the device and its ledger: they get an empty GPU.
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

    Does nothing where the process has one. Its closing is registered with `atexit`. Raises
    DeviceError where it cannot be opened.
    """
    if now.gpu is None:
        _open_for_process.enter_context(virtual_cuda(devices, memory, gpu=gpu))
        # Not later, when the modules it needs are gone.
        atexit.register(_open_for_process.close)


def _close_in_forked_process() -> None:
    """Close the device in a process that was forked.

    CUDA cannot be used after a fork, so a forked worker must not touch the device: whatever uses a
    tensor there raises the error of `forked_process_error`.
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

    For "auto" it is "cuda" if this machine has enough GPUs, else "virtual". To count them, patches
    that a closed device has left in torch are undone.
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
    """Open a device for the length of a `with` block.

    "auto" takes the machine's own GPUs, or virtual ones where there are too few. `memory` is the
    size of each virtual device, and `gpu` names the GPU that these are like; both are left out of
    account for real ones. Raises BadDeviceCount, BadSize, UnknownGpu, AlreadyOpen, RealDeviceInUse,
    TorchUnsupported, TorchLacks, and NoSuchDevice where this machine does not have the device.
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
