"""Records the operators that run on a real device, and the memory in use there."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._python_dispatch import TorchDispatchMode

from virtual_cuda.ledger.records import GRAD, INFERENCE, OPERATION, SYNC, TRANSFER, Row
from virtual_cuda.patching import Patch
from virtual_cuda.real.waits import COPIES, CudaWaits, KnownWaits, base_name, kind_of
from virtual_cuda.recorder import Recorder, tensors_in


def storage_behind(tensor: torch.Tensor) -> Any:
    """The storage of a tensor; None where it has none of its own (sparse tensors)."""
    return tensor.untyped_storage() if tensor.layout is torch.strided else None


class MemoryUsage:
    """The memory of a kind of device. This one is Metal's: its allocator keeps no peak of its own."""

    def __init__(self) -> None:
        self.highest = 0

    def take(self, tensor: torch.Tensor) -> int:
        """The bytes that are new in a tensor that an operator has made."""
        storage = storage_behind(tensor)
        return 0 if storage is None else int(storage.nbytes())

    def live(self, index: int) -> int:
        """The bytes in use on a device."""
        now = int(torch.mps.current_allocated_memory())
        self.highest = max(self.highest, now)
        return now

    def peaks(self) -> dict[str, int]:
        """The most bytes in use at once, by device."""
        return {"mps:0": self.highest}

    def patches(self) -> Iterator[Patch]:
        """What has to be patched for the peaks to be right."""
        yield from ()


class CudaUsage(MemoryUsage):
    """As CUDA's caching allocator counts it, temporaries inside an operator included, since the device was opened."""

    def __init__(self) -> None:
        torch.cuda.init()
        self.devices = range(torch.cuda.device_count())
        self.peak = dict.fromkeys(self.devices, 0)
        self.before = dict.fromkeys(self.devices, 0)
        for index in self.devices:
            _take_workspaces(index)
            self.before[index] = self.live(index)
            torch.cuda.reset_peak_memory_stats(index)

    def live(self, index: int) -> int:
        return max(0, _allocated(index)["current"] - self.before[index])

    def note_peak(self) -> None:
        for index in self.devices:
            self.peak[index] = max(self.peak[index], _allocated(index)["peak"] - self.before[index])

    def peaks(self) -> dict[str, int]:
        self.note_peak()
        return {f"cuda:{index}": peak for index, peak in self.peak.items()}

    def patches(self) -> Iterator[Patch]:
        """A student who measures a peak resets it first; the ledger's own peak must not be lost by that."""
        original = torch.cuda.reset_peak_memory_stats

        def reset(*args: Any, **kwargs: Any) -> None:
            self.note_peak()
            original(*args, **kwargs)

        yield torch.cuda, "reset_peak_memory_stats", reset
        yield torch.cuda.memory, "reset_peak_memory_stats", reset


def _allocated(index: int) -> dict[str, int]:
    # torch.cuda.memory_allocated sorts two hundred figures to give one.
    figures: dict[str, int] = torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]
    return figures


def _take_workspaces(index: int) -> None:
    """cuBLAS takes 32 MiB with its first product in each thread; taken now, no line of the student's is charged."""
    with torch.inference_mode(False), torch.enable_grad():
        row = torch.ones(1, 16, device=f"cuda:{index}", requires_grad=True)
        total = torch.nn.functional.linear(row, torch.ones(16, 16, device=row.device), row[0]).sum()
        torch.autograd.backward(total)


class HostUsage(MemoryUsage):
    """The storages that operators made since the device was opened, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.known: dict[int, Any] = {}

    def take(self, tensor: torch.Tensor) -> int:
        storage = storage_behind(tensor)
        if storage is None or storage._cdata in self.known:
            return 0
        key, size = storage._cdata, int(storage.nbytes())

        def gone(_: Any) -> None:
            del self.known[key]
            self.now -= size

        # A storage's Python object lives as long as the storage does, however often it is fetched anew.
        self.known[key] = weakref.ref(storage, gone)
        self.now += size
        self.highest = max(self.highest, self.now)
        return size

    def live(self, index: int) -> int:
        return self.now

    def peaks(self) -> dict[str, int]:
        return {"cpu": self.highest}


USAGE = {"cuda": CudaUsage, "mps": MemoryUsage, "cpu": HostUsage}  # by kind of device


_KEYS: Final = {"cuda": DispatchKey.CUDA, "mps": DispatchKey.MPS, "cpu": DispatchKey.CPU}
_UNSET: Final = object()

# Operators of cuDNN are recorded under the name that they have on every other device, so that one check serves all.
_ALSO_KNOWN_AS: Final = {
    "aten.cudnn_batch_norm.default": "aten.native_batch_norm.default",
    "aten.cudnn_batch_norm_backward.default": "aten.native_batch_norm_backward.default",
}


class _ThreadState(threading.local):
    """The autocast dtype, what a copy is made for, and whether nothing is recorded; for each thread."""

    autocast: Any = _UNSET
    reading: str | None = None
    quiet: int = 0


class RecordingMode(TorchDispatchMode):
    """Hands every operator of one thread to the observer. Autograd takes it along into its own threads."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer = observer

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler (a second) to tell it to keep away

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.observer.operate(self, func, args, kwargs or {})


class Observer:
    """Records what happens on one kind of device while it is open."""

    def __init__(self, kind: str, rows: list[Row]) -> None:
        self.kind = kind
        self.rows = rows
        self.open = True
        self.thread = _ThreadState()
        self.memory = USAGE[kind]()
        self.waits = CudaWaits() if kind == "cuda" else KnownWaits()
        self.passes = Recorder(rows)
        self.backward_autocast: Any = None
        self._moved: int | None = None  # the storage that the last copy onto the device made

    def operate(self, mode: RecordingMode, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator, and record what it did if it concerns the device."""
        if not self.open or self.thread.quiet:
            return func(*args, **kwargs)
        given = [*tensors_in(args), *tensors_in(kwargs)]
        device = self._concerned(given, args, kwargs)
        if device is None:
            return func(*args, **kwargs)
        if not given and _is_made_of_others(func, self.kind):
            # The virtual device sees the operators a factory is made of, not the factory.
            with mode:
                return func.redispatch(DispatchKeySet(_KEYS[self.kind]), *args, **kwargs)
        if _is_shorthand(func):
            with mode:
                return func.decompose(*args, **kwargs)
        storages = {_storage_key(tensor) for tensor in given} - {None}
        name = base_name(func)
        if name == "lift_fresh":
            return self._lifted(func, args, kwargs)
        out, waits = self.waits.run(func, args, kwargs)
        made = [t for t in tensors_in(out) if t.device.type == self.kind and _storage_key(t) not in storages]
        if name == "_to_copy" and out.device.type == self.kind:
            device = out.device
        self._write_operation(str(func), device, sum(map(self.memory.take, made)))
        if name in COPIES:
            self._write_copy(name, args, kwargs, out)
        if self.kind == "cpu" and self.passes.stepping:
            waits = 0  # optimizers count their steps in host tensors, which are never waited for
        for _ in range(waits):
            self.wait(self.thread.reading or kind_of(func))
        return out

    def _concerned(self, given: list[torch.Tensor], args: Any, kwargs: Any) -> torch.device | None:
        """The device of this kind that an operator works on or makes a tensor on, or None."""
        for tensor in given:
            if tensor.device.type == self.kind:
                return tensor.device
        named: torch.device | None = kwargs.get("device")
        if named is None:
            return torch.device("cpu") if self.kind == "cpu" and not given else None
        if named.type != self.kind:
            return None
        if named.index is not None or self.kind == "cpu":
            return named
        return torch.device(self.kind, torch.cuda.current_device() if self.kind == "cuda" else 0)

    def _lifted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`torch.tensor(data, device=…)`: made on the host and copied where no mode can see it, then shown here."""
        out = func(*args, **kwargs)
        key = _storage_key(out)
        if self.kind != "cpu" and key is not None and key != self._moved:
            self._write_operation("aten._to_copy.default", out.device, self.memory.take(out))
            self._write_transfer("to_device", out.nbytes, False, False, "cpu", str(out.device))
            if out.nbytes:
                self.wait("copy")
        self._moved = None
        return out

    def _write_copy(self, name: str, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        if name == "copy_":
            target, source = args[0], args[1]
            non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        else:
            target, source, non_blocking = out, args[0], kwargs.get("non_blocking", False)
        if target.device == source.device:
            return
        # Whether a cast comes before the copy or after depends on the device: the source's size is recorded.
        size = source.nbytes
        ends = str(source.device), str(target.device)
        if target.device.type == "cpu":
            pinned = name == "copy_" and target.is_pinned()
            self._write_transfer("to_host", size, pinned, non_blocking, *ends)
        elif source.device.type == "cpu":
            self._moved = _storage_key(target)
            self._write_transfer("to_device", size, source.is_pinned(), non_blocking, *ends)
        else:
            self._write_transfer("between_devices", size, False, non_blocking, *ends)
        if self.kind == "mps" and size and not non_blocking and "cpu" in ends:
            self.wait(self.thread.reading or "copy")

    def _write_operation(self, name: str, device: torch.device, size: int) -> None:
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        mode = (GRAD if grad else 0) | (INFERENCE if inference else 0)
        dtype = self.backward_autocast if self.thread.autocast is _UNSET else self.thread.autocast
        live = self.memory.live(device.index or 0)
        name = _ALSO_KNOWN_AS.get(name, name)
        self.rows.append((OPERATION, perf_counter(), *self.passes.here(), name, str(device), mode, dtype, size, live))

    def _write_transfer(self, direction: str, size: int, *rest: Any) -> None:
        if size:
            self.rows.append((TRANSFER, perf_counter(), *self.passes.here(), direction, size, *rest))

    def wait(self, what: str, explicit: bool = False) -> None:
        """The host has waited."""
        self.rows.append((SYNC, perf_counter(), *self.passes.here(), what, explicit))
        if not explicit:
            self.waits.complain()

    def autocast_patches(self) -> Iterator[Patch]:
        """Which dtype is cast to: torch's own answer is "none" inside an operator that has just been cast."""
        thread, kind = self.thread, self.kind
        region = torch.amp.autocast_mode.autocast
        enter, leave = region.__enter__, region.__exit__

        def entered(self: Any) -> Any:
            given = enter(self)  # type: ignore[no-untyped-call]
            self.__dict__.setdefault("_dojo_before", []).append(thread.autocast)
            if self.device == kind:
                thread.autocast = str(self.fast_dtype) if self._enabled else None
            return given

        def left(self: Any, *error: Any) -> Any:
            thread.autocast = self.__dict__["_dojo_before"].pop()
            return leave(self, *error)

        yield region, "__enter__", entered
        yield region, "__exit__", left
        for name in ("backward", "grad"):
            yield torch.autograd, name, self._remembering_autocast(getattr(torch.autograd, name))

    def _remembering_autocast(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            before, now = self.backward_autocast, self.thread.autocast
            self.backward_autocast = before if now is _UNSET else now
            try:
                return original(*args, **kwargs)
            finally:
                self.backward_autocast = before

        return call


def _storage_key(tensor: torch.Tensor) -> int | None:
    storage = storage_behind(tensor)
    return None if storage is None else storage._cdata


@functools.cache
def _is_made_of_others(func: Any, kind: str) -> bool:
    """Whether an operator has no kernel of its own on the device but is put together from others."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = func.name()
    return bool(has(name, "CompositeExplicitAutograd") and not has(name, str(_KEYS[kind]).rpartition(".")[2]))


@functools.cache
def _is_shorthand(func: Any) -> bool:
    """`to`, `item`, `linear`, …: autograd takes them apart, but in inference mode they arrive whole."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))
