"""Records what runs on a real device, for the same ledger as the virtual one's.

Recorded are operators, the memory in use, copies, and when the host waits for the device.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import warnings
import weakref
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.data.dataloader as loading

from virtual_cuda.device.state import claim_device
from virtual_cuda.device.torch_names import module_names, names_made_of_others, operator_names
from virtual_cuda.device_kinds import DEVICE_TYPES
from virtual_cuda.errors import NoSuchDevice
from virtual_cuda.internals import find_internal, require_internal
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.names import Vocabulary
from virtual_cuda.ledger.rows import (
    GRAD,
    INFERENCE,
    OperationRow,
    Row,
    SyncRow,
    TransferRow,
)
from virtual_cuda.ops.placement import WARNING, direction_of_copy
from virtual_cuda.ops.registry import facts_of, name_of
from virtual_cuda.patching import Patch, around, kept_patches, patch
from virtual_cuda.recorder import Recorder, autocast_patches, tensors_in
from virtual_cuda.torch_api.cpp_kernels import withdraw_kernels
from virtual_cuda.torch_api.cuda_module import sync_debug_mode
from virtual_cuda.torch_api.imports import few_imports

_MODE: Final = "torch.utils._python_dispatch.TorchDispatchMode"
_REAL: Final = "recording on a real device"
if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as _Mode
else:
    _Mode = find_internal(_MODE, otherwise=object)
_KeySet: Final = find_internal("torch._C.DispatchKeySet")
_tf32_in_cudnn: Final = find_internal("torch._C._get_cudnn_allow_tf32", otherwise=lambda: True)
_set_tf32_in_cudnn: Final = find_internal(
    "torch._C._set_cudnn_allow_tf32", otherwise=lambda allowed: None
)
_has_kernel: Final = find_internal("torch._C._dispatch_has_kernel_for_dispatch_key", _REAL)
_COMPOSITE: Final = find_internal("torch._C.DispatchKey.CompositeImplicitAutograd", _REAL)


def _vocabulary_of(kind: str) -> Vocabulary:
    """What a ledger of real devices of this kind can name."""
    labels: tuple[str, ...] = ("cpu",)
    if kind != "cpu":
        labels = tuple(f"{kind}:{index}" for index in range(device_count(kind)))
    return Vocabulary(
        labels, operator_names, names_made_of_others, module_names, has_waits_of_operators=True
    )


class RealDevice:
    """What `with real_device("cuda") as real` gives: the ledger, and the device to use."""

    def __init__(self, kind: str) -> None:
        """Make the ledger of a device of this kind; nothing is recorded yet."""
        self.kind = kind
        # With an index, so that it equals the device a tensor there says it is on.
        self.device = torch.device(kind)
        if kind != "cpu":
            self.device = torch.device(kind, 0)
        self.ledger = Ledger(vocabulary=_vocabulary_of(kind))

    def __repr__(self) -> str:
        return f"<real device {self.kind}: {len(self.ledger.rows)} rows in the ledger>"


def device_count(kind: str) -> int:
    """The number of devices of a kind ("cuda", "mps", "cpu") that this machine has.

    0 for any other kind.
    """
    if kind == "cuda":
        if torch.cuda.is_available():
            return torch.cuda.device_count()
        return 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return int(kind == "cpu")


_open: Final[list[Observer]] = []  # the observer of the open device, for a forked child to find


def _stop_in_forked_process() -> None:
    """Stop recording in a process that was forked.

    A DataLoader's worker must not touch the device, and nobody reads its ledger.
    """
    for observer in _open:
        observer.open = False


@functools.cache
def _watch_forks() -> None:
    """Stop recording in every process that is forked from now on; done once per process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_stop_in_forked_process)


def _patches_for(observer: Observer) -> Iterator[Patch]:
    """The patches of a real device, where `observer` records.

    They record passes and waits and watch the memory, and give every new thread a recording mode.
    """
    yield from observer.memory.patches()
    yield from observer.waits.patches()
    yield from observer.passes.patches()
    yield from observer.passes.backward_patches()
    yield from autocast_patches(observer.thread, observer.kind)
    # Around what is patched above, and around the functions that wait.
    for name in ("backward", "grad"):
        yield around(torch.autograd, name, observer.remember_autocast)
    for owner, name, what in explicit_waits(observer.kind):
        yield around(owner, name, functools.partial(observer.run_explicit_wait, what))
    yield around(torch.Tensor, "tolist", observer.run_tolist)
    yield around(threading.Thread, "run", observer.run_thread)
    if observer.kind == "cpu":
        # On every other device the loader's own work is on the host and so not in the ledger.
        iterator = find_internal("torch.utils.data.dataloader._BaseDataLoaderIter")
        yield around(iterator, "__next__", observer.run_without_record)
        yield around(loading.DataLoader, "__iter__", observer.run_without_record)


@contextlib.contextmanager
def real_device(kind: str = "cuda") -> Iterator[RealDevice]:
    """Record this process on a real device, for the length of a `with` block.

    The kind is "cuda", "mps" or "cpu". For "cuda", CUDA is started. torch is patched meanwhile, and
    on CUDA convolutions do without TF32. Patches that a virtual device has left are undone. Raises
    NoSuchDevice and AlreadyOpen, and TorchLacks where this torch cannot show its operators.
    """
    kept_patches.undo()
    if kind not in DEVICE_TYPES or not device_count(kind):
        raise NoSuchDevice(kind)
    with contextlib.ExitStack() as undo:
        undo.enter_context(claim_device(f"real {kind} device"))
        undo.enter_context(few_imports())
        real = RealDevice(kind)
        _watch_forks()
        observer = Observer(kind, real.ledger.rows)
        patch(_patches_for(observer), undo)
        undo.enter_context(observer.passes.step_hooks())
        undo.callback(_close_observer, observer, real.ledger)
        _open.append(observer)
        if kind == "cuda":
            # Convolutions without TF32, as on every other device. cuDNN uses it by default, for
            # some sizes of a batch only: a right result then differs between one batch and two by
            # more than many mistakes do.
            try:
                before = _tf32_in_cudnn()
            except RuntimeError:  # torch does not say, where a file has set its newer settings
                before = True
            _set_tf32_in_cudnn(False)
            undo.callback(_set_tf32_in_cudnn, before)
        undo.enter_context(RecordingMode(observer))
        yield real


def _close_observer(observer: Observer, ledger: Ledger) -> None:
    """Stop observing, and note the peaks of memory in the ledger."""
    _open.clear()
    observer.open = False  # a thread that is still running keeps its mode
    ledger.peaks.update(observer.memory.peak_bytes())


def limit_memory(memory: int) -> None:
    """Make this process's CUDA context and limit its memory on each GPU; raises NoSuchDevice.

    Kernels that a virtual device has left are removed before. `memory` is in bytes. Waits for the
    GPU.
    """
    withdraw_kernels()  # a process that has opened the virtual device may still have its kernels
    count = device_count("cuda")
    if not count:
        raise NoSuchDevice("cuda")
    for index in range(count):
        whole = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / whole), index)
    torch.cuda.synchronize()


def device_failure() -> Exception | None:
    """The error that has broken this process's CUDA context, or None.

    Waits until the device has finished.
    """
    if not torch.cuda.is_initialized():
        return None
    try:
        find_internal("torch._C._cuda_synchronize", _REAL)()
    except RuntimeError as error:
        return error
    return None


# ---- waits ---------------------------------------------------------------------------------------

_ALWAYS: Final = ("always", re.compile(WARNING), UserWarning, None, 0)
COPIES: Final = frozenset({"_to_copy", "copy_"})


def wait_name_of(func: Any) -> str:
    """What the ledger calls the wait that an operator causes."""
    name = name_of(func)
    if name in COPIES:
        return "copy"
    waits = facts_of(func).waits
    if waits is not None:
        return waits[0]
    bare = name.strip("_")
    if bare.startswith("linalg_"):
        return "linalg"
    return bare


class KnownWaits:
    """Counts the waits on a device that does not report them.

    It counts how often the host would wait for each operator on CUDA.
    """

    def run_and_count(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Run an operator.

        Returns its result, and how often the host would have waited for it on CUDA. Raises what the
        operator raises.
        """
        out = func(*args, **kwargs)
        return out, _expected_waits(func, args, kwargs)

    def patches(self) -> Iterator[Patch]:
        """The patches that the counting needs: none."""
        yield from ()

    def report_wait(self) -> None:
        """Do nothing: only CUDA has `torch.cuda.set_sync_debug_mode`."""


def _expected_waits(func: Any, args: Any, kwargs: Any) -> int:
    """The number of times the host would wait for this call on CUDA; nothing is recorded.

    The operator's entry says it; for an index, its masks are counted.
    """
    waits = facts_of(func).waits
    if waits is None:
        return 0
    kind, count = waits
    names = [argument.name for argument in func._schema.arguments]
    arguments = dict(zip(names, args, strict=False))
    arguments.update(kwargs)
    if kind == "boolean index" and "indices" in arguments:
        return _expected_waits_of_index(arguments)
    return int(count(arguments) if callable(count) else count)


def _expected_waits_of_index(arguments: dict[str, Any]) -> int:
    """The number of times the host would wait for an index with these arguments.

    How many elements a mask selects has to be counted first; a fill needs no count.
    """
    values = arguments.get("values")
    if values is not None and values.numel() == 1 and not arguments.get("accumulate"):
        return 0
    waits = 0
    for index in arguments["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8) and index.numel():
            waits += 1
    return waits


def _set_filters(filters: Any) -> None:
    """Make this list the warning filters of Python."""
    # Assigned, not inserted: inserting would make Python forget which warnings it has already
    # shown.
    warnings.filters = filters


class _Tally(threading.local):
    """The number of warnings that the operator now running in this thread has caused.

    None while the student's own code runs.
    """

    count: int | None = None


class CudaWaits(KnownWaits):
    """Counts the warnings of CUDA's sync debug mode, which is on while an operator runs.

    It is off in between, because warnings and warning filters belong to the student. The mode that
    the student sets is kept and honoured.
    """

    def __init__(self) -> None:
        """Turn sync debug mode on once, so that its own warning has been given."""
        self.tally = _Tally()
        self.students = int(torch.cuda.get_sync_debug_mode())
        self.set_mode = find_internal("torch._C._cuda_set_sync_debug_mode", _REAL)
        self.binding = torch.zeros(1, dtype=torch.float64)
        with warnings.catch_warnings():
            # The first time it is set, it warns that it is a prototype.
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode(self.students)

    def run_and_count(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Run an operator in sync debug mode.

        Returns its result, and how often the host waited for it. The student's warning filters are
        put aside meanwhile where they would hide the warnings. Raises what the operator raises.
        """
        out: Any = None

        def call(_: Any) -> float:
            """Run the operator, and keep its result; the returned number is of no use."""
            nonlocal out
            out = func(*args, **kwargs)
            return 0.0

        # The warnings must be seen, whatever the student filters.
        theirs = warnings.filters
        overruled = theirs[:1] != [_ALWAYS]  # by a filter the student has put in front
        if overruled:
            _set_filters([_ALWAYS, *theirs])
        before = self.tally.count
        self.tally.count = 0
        self.set_mode(1)
        try:
            # C++ keeps warnings back until the outermost binding returns. `apply_` is a binding
            # that calls Python, so they are out when it is done, in autograd's threads too.
            self.binding.apply_(call)
            count = self.tally.count
        finally:
            self.set_mode(0)
            self.tally.count = before
            if overruled:
                _set_filters(theirs)
        return out, count

    def report_wait(self) -> None:
        """Report one wait in the mode that the student has set.

        Warns, or raises RuntimeError, as CUDA does.
        """
        if self.students == 2:
            raise RuntimeError(WARNING)
        if self.students == 1:
            warnings.warn(WARNING, UserWarning, stacklevel=2)

    def count_or_show(self, original: Any, message: Any) -> None:
        """Count a warning of a wait while waits are counted; show any other, by `original`."""
        if self.tally.count is not None and WARNING in str(message.message):
            self.tally.count += 1
        else:
            original(message)

    def set_students_mode(self, debug_mode: Any) -> None:
        """`torch.cuda.set_sync_debug_mode`: note what the student asks for.

        Raises RuntimeError for a mode that is none.
        """
        self.students = sync_debug_mode(debug_mode)

    def patches(self) -> Iterator[Patch]:
        """The patches that count warnings of waits, and keep the mode that the student has set."""
        yield warnings, "filters", [_ALWAYS, *warnings.filters]
        # Not `showwarning`: that one is replaced by `catch_warnings(record=True)`, which students
        # use.
        yield around(warnings, "_showwarnmsg", self.count_or_show)
        yield torch.cuda, "set_sync_debug_mode", self.set_students_mode
        yield torch.cuda, "get_sync_debug_mode", lambda: self.students


def explicit_waits(kind: str) -> Iterator[tuple[Any, str, str]]:
    """The functions that tell the host to wait.

    Of each: its owner, its name there, and what the ledger calls the wait.
    """
    yield torch.accelerator, "synchronize", "synchronize"
    if kind == "cuda":
        yield torch.cuda, "synchronize", "synchronize"
        yield torch.cuda.streams.Event, "synchronize", "event.synchronize"
        yield torch.cuda.streams.Stream, "synchronize", "stream.synchronize"
    elif kind == "mps":
        yield torch.mps, "synchronize", "synchronize"
        yield torch.mps.event.Event, "synchronize", "event.synchronize"
    else:
        yield torch.cpu, "synchronize", "synchronize"


# ---- memory --------------------------------------------------------------------------------------


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage of a tensor; None where it has none of its own (sparse tensors)."""
    if tensor.layout is torch.strided:
        return tensor.untyped_storage()
    return None


class MemoryUsage:
    """Measures the memory of a kind of device.

    This class is for Metal, whose allocator keeps no peak; those for CUDA and the host derive from
    it.
    """

    def __init__(self) -> None:
        self.highest = 0

    def count_tensor(self, tensor: torch.Tensor) -> int:
        """The bytes of a tensor that an operator has made; counts them where need be."""
        storage = storage_of(tensor)
        if storage is None:
            return 0
        return int(storage.nbytes())

    def live_bytes(self, index: int) -> int:
        """The bytes in use on a device now; the highest of these figures is remembered."""
        now = int(torch.mps.current_allocated_memory())
        self.highest = max(self.highest, now)
        return now

    def peak_bytes(self) -> dict[str, int]:
        """The most bytes in use at once, by device."""
        return {"mps:0": self.highest}

    def patches(self) -> Iterator[Patch]:
        """The patches that the peaks need: none."""
        yield from ()


class CudaUsage(MemoryUsage):
    """Measures memory as CUDA's caching allocator counts it, since the device was opened.

    Temporaries inside an operator are included.
    """

    def __init__(self) -> None:
        """Start CUDA, and take the memory now in use as zero.

        Before, each GPU computes a small product and its gradient, for which libraries take memory
        that stays. Resets the peaks that CUDA's allocator keeps.
        """
        torch.cuda.init()
        self.devices = range(torch.cuda.device_count())
        self.peak = dict.fromkeys(self.devices, 0)
        self.before = dict.fromkeys(self.devices, 0)
        for index in self.devices:
            # cuBLAS takes 32 MiB with its first product in each thread; taken now, no line of the
            # student's is charged.
            with torch.inference_mode(False), torch.enable_grad():
                row = torch.ones(1, 16, device=f"cuda:{index}", requires_grad=True)
                total = torch.nn.functional.linear(
                    row, torch.ones(16, 16, device=row.device), row[0]
                ).sum()
                torch.autograd.backward(total)
            self.before[index] = self.live_bytes(index)
            torch.cuda.reset_peak_memory_stats(index)

    def live_bytes(self, index: int) -> int:
        """The bytes in use on a device, beyond those at the opening."""
        current = _allocated_bytes(index)["current"]
        return max(0, current - self.before[index])

    def note_peak(self) -> None:
        """Note the highest use of each device so far."""
        for index in self.devices:
            peak = _allocated_bytes(index)["peak"] - self.before[index]
            self.peak[index] = max(self.peak[index], peak)

    def peak_bytes(self) -> dict[str, int]:
        """The most bytes in use at once, by device, up to now; noted as `note_peak` does."""
        self.note_peak()
        return {f"cuda:{index}": peak for index, peak in self.peak.items()}

    def patches(self) -> Iterator[Patch]:
        """The patches that keep the ledger's peak when a student resets CUDA's own.

        A student who measures a peak resets it first.
        """
        for home in (torch.cuda, torch.cuda.memory):
            yield around(home, "reset_peak_memory_stats", self.reset_peaks)

    def reset_peaks(self, original: Any, *args: Any, **kwargs: Any) -> None:
        """Note the peaks, then let torch, the `original`, reset its own.

        Raises what torch raises for a wrong device.
        """
        self.note_peak()
        original(*args, **kwargs)


def _allocated_bytes(index: int) -> dict[str, int]:
    """The bytes that CUDA's allocator counts on a device: "current", "peak" and others."""
    # torch.cuda.memory_allocated sorts two hundred figures to give one.
    statistics = torch.cuda.memory_stats_as_nested_dict(index)
    figures: dict[str, int] = statistics["allocated_bytes"]["all"]
    return figures


class HostUsage(MemoryUsage):
    """Measures the storages that operators made since the device was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.known: dict[int, Any] = {}

    def count_tensor(self, tensor: torch.Tensor) -> int:
        """The bytes of a tensor's storage, or 0 for a storage that is counted already.

        Counts them as in use until the storage is freed.
        """
        storage = storage_of(tensor)
        if storage is None or storage._cdata in self.known:
            return 0
        key = storage._cdata
        size = int(storage.nbytes())

        def forget_storage(_: Any) -> None:
            del self.known[key]
            self.now -= size

        # A storage's Python object lives as long as the storage does, however often it is fetched
        # anew.
        self.known[key] = weakref.ref(storage, forget_storage)
        self.now += size
        self.highest = max(self.highest, self.now)
        return size

    def live_bytes(self, index: int) -> int:
        """The bytes of the storages that are counted now, whatever the index."""
        return self.now

    def peak_bytes(self) -> dict[str, int]:
        return {"cpu": self.highest}


USAGE = {"cuda": CudaUsage, "mps": MemoryUsage, "cpu": HostUsage}  # by kind of device


# ---- operators -----------------------------------------------------------------------------------

_KEYS: Final = {
    "cuda": find_internal("torch._C.DispatchKey.CUDA", _REAL),
    "mps": find_internal("torch._C.DispatchKey.MPS", _REAL),
    "cpu": find_internal("torch._C.DispatchKey.CPU", _REAL),
}
_UNSET: Final = object()

# Operators of cuDNN are recorded under the name that they have on every other device, so that one
# check serves all.
_ALSO_KNOWN_AS: Final = {
    "aten.cudnn_batch_norm.default": "aten.native_batch_norm.default",
    "aten.cudnn_batch_norm_backward.default": "aten.native_batch_norm_backward.default",
}


class _ObservedThread(threading.local):
    """Where each thread stands.

    `autocast` is the dtype of autocast, `reading` what a copy to the host is made for, and nothing
    is recorded while `quiet` is not 0.
    """

    autocast: Any = _UNSET
    reading: str | None = None
    quiet: int = 0


class RecordingMode(_Mode):
    """Hands every operator of one thread to the observer.

    Autograd takes it along into its own threads.
    """

    def __init__(self, observer: Observer) -> None:
        require_internal(_MODE, _REAL)
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer = observer

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler (a second) to tell it to keep away

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.observer.run_operator(self, func, args, kwargs or {})


class Observer:
    """Records what happens on one kind of device while it is open."""

    def __init__(self, kind: str, rows: list[Row]) -> None:
        """Make the observer of a kind of device, which writes into these rows; nothing is patched.

        For "cuda", CUDA is started, each GPU computes a small product, its peaks of memory are
        reset, and sync debug mode is set as it is.
        """
        self.kind = kind
        self.rows = rows
        self.open = True
        self.thread = _ObservedThread()
        self.memory = USAGE[kind]()
        self.waits = CudaWaits() if kind == "cuda" else KnownWaits()
        self.passes = Recorder(rows)
        self.backward_autocast: Any = None
        self._moved: int | None = None  # the storage that the last copy onto the device made

    def run_operator(self, mode: RecordingMode, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator, record what it did if it concerns the device, and return its result.

        `mode` is the recording mode that has met it. Raises what the operator raises, and
        RuntimeError for a wait that the student's sync debug mode forbids.
        """
        if not self.open or self.thread.quiet:
            return func(*args, **kwargs)
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        device = self._device_of_call(inputs, kwargs)
        if device is None:
            return func(*args, **kwargs)
        if not inputs and _is_made_of_others(func, self.kind):
            # The virtual device sees the operators a factory is made of, not the factory.
            with mode:
                keys = _KeySet(_KEYS[self.kind])
                return func.redispatch(keys, *args, **kwargs)
        if _is_shorthand(func):
            with mode:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        name = name_of(func)
        if name == "lift_fresh":
            return self._run_lift_fresh(func, args, kwargs)
        # Run it, and see what is new.
        out, waits = self.waits.run_and_count(func, args, kwargs)
        size = self._count_new_memory(inputs, out)
        if name == "_to_copy" and out.device.type == self.kind:
            device = out.device
        # Write down the operator, then its copy, then its waits.
        self._write_operation(str(func), device, size)
        if name in COPIES:
            self._write_copy(name, args, kwargs, out)
        if self.kind == "cpu" and self.passes.stepping:
            waits = 0  # optimizers count their steps in host tensors, which are never waited for
        for _ in range(waits):
            self.record_wait(self.thread.reading or wait_name_of(func))
        return out

    def _count_new_memory(self, inputs: list[torch.Tensor], out: Any) -> int:
        """The bytes of the storages on the device that an operator has made; counts them as used.

        A result that looks into the storage of an input is not new.
        """
        storages = {_storage_key(tensor) for tensor in inputs} - {None}
        size = 0
        for tensor in tensors_in(out):
            if tensor.device.type == self.kind and _storage_key(tensor) not in storages:
                size += self.memory.count_tensor(tensor)
        return size

    def _device_of_call(self, inputs: list[torch.Tensor], kwargs: Any) -> torch.device | None:
        """The device of this kind that an operator works on or makes a tensor on, or None."""
        for tensor in inputs:
            if tensor.device.type == self.kind:
                return tensor.device
        named: torch.device | None = kwargs.get("device")
        if named is None:
            if self.kind == "cpu" and not inputs:
                return torch.device("cpu")
            return None
        if named.type != self.kind:
            return None
        if named.index is not None or self.kind == "cpu":
            return named
        current = 0
        if self.kind == "cuda":
            current = torch.cuda.current_device()
        return torch.device(self.kind, current)

    def _run_lift_fresh(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run `lift_fresh`, with which `torch.tensor(data, device=…)` ends, and record the copy.

        The tensor was made on the host and copied where no mode can see it. Returns the operator's
        result. Raises RuntimeError for a wait that the student's sync debug mode forbids.
        """
        out = func(*args, **kwargs)
        key = _storage_key(out)
        if self.kind != "cpu" and key is not None and key != self._moved:
            size = self.memory.count_tensor(out)
            self._write_operation("aten._to_copy.default", out.device, size)
            self._write_transfer(out.nbytes, "cpu", str(out.device))
            if out.nbytes:
                self.record_wait("copy")
        self._moved = None
        return out

    def _write_copy(self, name: str, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        """Record a copy if it leads from one device to another; on Metal, its wait, too.

        `name` is "copy_" or "_to_copy", `args` and `kwargs` are the operator's, `out` is its
        result. The storage of a copy onto the device is remembered for `_run_lift_fresh`.
        """
        if name == "copy_":
            target = args[0]
            source = args[1]
            if len(args) > 2:
                non_blocking = args[2]
            else:
                non_blocking = kwargs.get("non_blocking", False)
        else:
            target = out
            source = args[0]
            non_blocking = kwargs.get("non_blocking", False)
        if target.device == source.device:
            return
        # Whether a cast comes before the copy or after depends on the device: the source's size is
        # recorded.
        pinned = False
        if target.device.type == "cpu":
            pinned = name == "copy_" and target.is_pinned()
        elif source.device.type == "cpu":
            pinned = source.is_pinned()
            self._moved = _storage_key(target)
        size = source.nbytes
        ends = str(source.device), str(target.device)
        self._write_transfer(size, *ends, pinned, non_blocking)
        if self.kind == "mps" and size and not non_blocking and "cpu" in ends:
            self.record_wait(self.thread.reading or "copy")

    def _write_operation(self, name: str, device: torch.device, size: int) -> None:
        """Record one operator, with the modes and the memory of this moment.

        `size` is how many bytes its results newly occupy.
        """
        mode = 0
        if torch.is_grad_enabled():
            mode |= GRAD
        if torch.is_inference_mode_enabled():
            mode |= INFERENCE
        autocast = self.thread.autocast
        if autocast is _UNSET:
            autocast = self.backward_autocast
        code, offset = self.passes.here()
        row = OperationRow(
            at=perf_counter(),
            code=code,
            offset=offset,
            name=_ALSO_KNOWN_AS.get(name, name),
            device=str(device),
            mode=mode,
            autocast=autocast,
            bytes=size,
            live=self.memory.live_bytes(device.index or 0),
        )
        self.rows.append(row)

    def _write_transfer(
        self,
        size: int,
        source: str,
        target: str,
        pinned: bool = False,
        non_blocking: bool = False,
    ) -> None:
        """Record the bytes of one copy between devices; nothing if there are none.

        `source` and `target` are names of devices; "cpu" is the host.
        """
        if not size:
            return
        code, offset = self.passes.here()
        row = TransferRow(
            at=perf_counter(),
            code=code,
            offset=offset,
            direction=direction_of_copy(source, target),
            bytes=size,
            pinned=pinned,
            non_blocking=non_blocking,
            source=source,
            target=target,
        )
        self.rows.append(row)

    def record_wait(self, what: str, explicit: bool = False) -> None:
        """Record that the host has waited; `what` is the ledger's name for the wait.

        A wait that was not explicit is also reported as the student has asked: with a warning, or
        by a RuntimeError.
        """
        self.rows.append(SyncRow(perf_counter(), *self.passes.here(), what, explicit))
        if not explicit:
            self.waits.report_wait()

    # ---- functions that are put around torch's ----

    def run_explicit_wait(self, what: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function that tells the host to wait, and record the wait under the name `what`.

        Returns and raises what the function, `original`, does.
        """
        result = original(*args, **kwargs)
        if not self.thread.quiet:
            self.record_wait(what, explicit=True)
        return result

    def run_tolist(self, original: Any, tensor: Any) -> Any:
        """Call `Tensor.tolist`, whose copy to the host is recorded under that name; gives the list.

        `original` is that method. On the host itself nothing is copied, and it is recorded as a
        wait. Raises RuntimeError for a wait that the student's sync debug mode forbids.
        """
        outer = self.thread.reading
        self.thread.reading = "tolist"
        try:
            if tensor.device.type == self.kind == "cpu" and not self.thread.quiet:
                self.record_wait("tolist")
            return original(tensor)
        finally:
            self.thread.reading = outer

    def run_thread(self, original: Any, thread: Any) -> None:
        """Call `Thread.run`, the `original`, in a recording mode.

        A dispatch mode holds in one thread only, so every thread of the student's gets its own.
        Raises what the thread raises.
        """
        with RecordingMode(self):
            original(thread)

    def run_without_record(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, the `original`, and record nothing of what it does in this thread.

        Returns and raises what the function does.
        """
        self.thread.quiet += 1
        try:
            return original(*args, **kwargs)
        finally:
            self.thread.quiet -= 1

    def remember_autocast(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, and keep the autocast dtype that it was started under.

        Its operators, also those in other threads, are recorded with that. Returns and raises what
        the pass, `original`, does.
        """
        before = self.backward_autocast
        now = self.thread.autocast
        self.backward_autocast = before if now is _UNSET else now
        try:
            return original(*args, **kwargs)
        finally:
            self.backward_autocast = before


def _storage_key(tensor: torch.Tensor) -> int | None:
    """A number that all tensors with one storage have in common; None without a storage."""
    storage = storage_of(tensor)
    if storage is None:
        return None
    return int(storage._cdata)


@functools.cache
def _is_made_of_others(func: Any, kind: str) -> bool:
    """True if an operator has no kernel of its own on the device but calls others."""
    name = func.name()
    if not _has_kernel(name, "CompositeExplicitAutograd"):
        return False
    key = str(_KEYS[kind]).rpartition(".")[2]
    return not _has_kernel(name, key)


@functools.cache
def _is_shorthand(func: Any) -> bool:
    """True for `to`, `item`, `linear` and others that autograd takes apart.

    In inference mode they arrive whole.
    """
    return bool(_has_kernel(func.name(), "CompositeImplicitAutograd"))
