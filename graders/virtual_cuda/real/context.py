"""Opens a real device for recording; limits its memory; checks that it still works."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.utils.data.dataloader as loading

from virtual_cuda.errors import NoSuchDevice
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.patching import Patch, around, claim, kept, patch
from virtual_cuda.real.observer import Observer, RecordingMode, explicit_waits
from virtual_cuda.recorder import autocast_patches
from virtual_cuda.torch_api.creation import withdraw_kernels
from virtual_cuda.torch_api.imports import few_imports

KINDS: Final = ("cuda", "mps", "cpu")


class RealDevice:
    """What `with real_device("cuda") as real` gives: the ledger, and the device to use."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        # With an index, so that it equals the device a tensor there says it is on.
        self.device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)
        self.ledger = Ledger()

    def __repr__(self) -> str:
        return f"<real device {self.kind}: {len(self.ledger.rows)} rows in the ledger>"


def device_count(kind: str) -> int:
    """The number of devices of a kind ("cuda", "mps", "cpu") that this machine has."""
    if kind == "cuda":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return int(kind == "cpu")


_open: Final[list[Observer]] = []  # the observer of the open device, for a forked child to find


def _after_fork_in_child() -> None:
    """A loader's worker inherits the observer, whose device it must not touch and whose ledger is not read."""
    for observer in _open:
        observer.open = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _patches(observer: Observer) -> Iterator[Patch]:
    yield from observer.memory.patches()
    yield from observer.waits.patches()
    yield from observer.passes.patches()
    yield from autocast_patches(observer.thread, observer.kind)

    def synchronize(what: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        given = original(*args, **kwargs)
        if not observer.thread.quiet:
            observer.wait(what, explicit=True)
        return given

    def tolist(original: Any, tensor: Any) -> Any:
        """`tolist` is a copy to the host under another name; on the host itself it is recorded as a wait."""
        before, observer.thread.reading = observer.thread.reading, "tolist"
        try:
            if tensor.device.type == observer.kind == "cpu" and not observer.thread.quiet:
                observer.wait("tolist")
            return original(tensor)
        finally:
            observer.thread.reading = before

    def run(original: Any, thread: Any) -> None:
        """A dispatch mode holds in one thread only, so that every thread the student starts is given its own."""
        with RecordingMode(observer):
            original(thread)

    def not_recorded(original: Any, *args: Any, **kwargs: Any) -> Any:
        observer.thread.quiet += 1
        try:
            return original(*args, **kwargs)
        finally:
            observer.thread.quiet -= 1

    for name in ("backward", "grad"):
        yield around(torch.autograd, name, observer.remember_autocast)
    for owner, name, what in explicit_waits(observer.kind):
        yield around(owner, name, functools.partial(synchronize, what))
    yield around(torch.Tensor, "tolist", tolist)
    yield around(threading.Thread, "run", run)
    if observer.kind == "cpu":
        # On every other device the loader's own work is on the host and so not in the ledger.
        yield around(loading._BaseDataLoaderIter, "__next__", not_recorded)
        yield around(loading.DataLoader, "__iter__", not_recorded)


@contextlib.contextmanager
def real_device(kind: str = "cuda") -> Iterator[RealDevice]:
    """Record this process on a real device ("cuda", "mps" or "cpu") for the length of a `with` block.

    Raises NoSuchDevice and AlreadyOpen.
    """
    kept.restore()
    if kind not in KINDS or not device_count(kind):
        raise NoSuchDevice(kind)
    with contextlib.ExitStack() as undo:
        undo.enter_context(claim(f"real {kind} device"))
        undo.enter_context(few_imports())
        real = RealDevice(kind)
        observer = Observer(kind, real.ledger.rows)
        patch(_patches(observer), undo)
        for hook in observer.passes.hooks():
            undo.callback(hook.remove)
        undo.callback(_close, observer, real.ledger)
        _open.append(observer)
        if kind == "cuda":
            # Convolutions without TF32, as on every other device. cuDNN uses it by default, for some sizes of a batch
            # only: a right result then differs between one batch and two by more than many mistakes do.
            try:
                before = torch._C._get_cudnn_allow_tf32()
            except RuntimeError:  # torch does not say, where a file has set its newer settings
                before = True
            torch._C._set_cudnn_allow_tf32(False)
            undo.callback(torch._C._set_cudnn_allow_tf32, before)
        undo.enter_context(RecordingMode(observer))
        yield real


def _close(observer: Observer, ledger: Ledger) -> None:
    _open.clear()
    observer.open = False  # a thread that is still running keeps its mode
    ledger.peaks.update(observer.memory.peaks())


def limit_memory(memory: int) -> None:
    """Make this process's CUDA context and limit its memory on each GPU; raises NoSuchDevice."""
    withdraw_kernels()  # a process that has opened the virtual device may still have its kernels
    count = device_count("cuda")
    if not count:
        raise NoSuchDevice("cuda")
    for index in range(count):
        whole = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / whole), index)
    torch.cuda.synchronize()


def device_failure() -> Exception | None:
    """The error that has broken this process's CUDA context, or None; waits until the device has finished."""
    if not torch.cuda.is_initialized():
        return None
    try:
        torch._C._cuda_synchronize()
    except RuntimeError as error:
        return error
    return None
