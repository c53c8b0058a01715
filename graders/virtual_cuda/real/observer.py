"""Records the operators that run on a real device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._python_dispatch import TorchDispatchMode

from virtual_cuda.ledger.records import GRAD, INFERENCE, OPERATION, SYNC, TRANSFER, Row
from virtual_cuda.patching import Patch
from virtual_cuda.real.usage import USAGE, storage_behind
from virtual_cuda.real.waits import COPIES, CudaWaits, KnownWaits, base_name, kind_of
from virtual_cuda.recorder import Recorder, tensors_in

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
