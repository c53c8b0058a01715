"""The fork server: a warm process that forks one isolated child per submission."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import io
import os
import pkgutil
import secrets
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from gpudojo.model.catalogue import day, registered
from gpudojo.sandbox.isolation import LINUX, PROCESSES_AT_MOST, Isolation, prepared
from gpudojo.sandbox.protocol import EVENT, REQUEST, Event, Request
from gpudojo.sandbox.real_gpus import CUDA_DEVICE_BYTES, CUDA_HOST_BYTES, GpuMemoryWatch

assert sys.platform != "win32"  # forks

# Imported late by probes and students' files; each costs milliseconds to seconds.
LATE: Final = (
    *(
        "torch.optim",
        "torch.utils.checkpoint",
        "torch.utils.data",
        "torch.profiler",
        "torch.amp",
        "torch.distributed",
    ),
    *("torch.distributed.nn", "torch.nn.parallel", "torch.testing", "torch.func", "torch.fx"),
    *(
        "numpy",
        "json",
        "math",
        "statistics",
        "collections",
        "contextlib",
        "functools",
        "itertools",
        "operator",
    ),
    *(
        "dataclasses",
        "typing",
        "time",
        "timeit",
        "copy",
        "random",
        "csv",
        "io",
        "re",
        "gc",
        "warnings",
        "inspect",
    ),
    *("multiprocessing.connection", "multiprocessing.popen_fork", "tempfile", "difflib"),
    "gpudojo.sprite_display",
)
# Needed by few: imported when the first child has ended, for those that follow.
SELDOM: Final = ("nbformat", "rich.console", "unittest.mock", "torch.utils.benchmark")


# What a tensor on the virtual device has inside, its values on the host and its memory, and a graph its steps.
INSIDE: Final = (
    "_inner",
    "_block",
    "_parts",
    "_weights",
    "_apart",
    "_steps",
    "_before",
    "_held",
    "_place",
    "_seeds",
)


class RenamedInside:
    """Finds the modules of `virtual_cuda` and loads them with other names for the inside of a tensor.

    The names are drawn for each fork server, so that no submission knows them, however it puts a name together.
    """

    def __init__(self) -> None:
        self.names = dict(zip(INSIDE, (f"_{secrets.token_hex(8)}" for _ in INSIDE), strict=True))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = (
            PathFinder.find_spec(name, path, target) if name.startswith("virtual_cuda.") else None
        )
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = Renaming(name, found.loader.path)
            found.loader.names = self.names
        return found


class Renaming(SourceFileLoader):
    """Loads a module with other names, and leaves the names to the module."""

    names: Mapping[str, str] = {}

    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        return code and _renamed(code, self.names)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self.names = {}


def _renamed(code: CodeType, names: Mapping[str, str], nested: bool = False) -> CodeType:
    """A code object in which other names stand for these; not in the body of a class, which only annotates them."""

    def other(value: Any) -> Any:
        if isinstance(value, CodeType):
            return _renamed(value, names, nested=True)
        if type(value) in (tuple, frozenset):
            return type(value)(map(other, value))
        return names.get(value, value) if type(value) is str else value

    if nested and not code.co_flags & inspect.CO_OPTIMIZED:
        inner = (other(each) if isinstance(each, CodeType) else each for each in code.co_consts)
        return code.replace(co_consts=tuple(inner))
    return code.replace(co_consts=other(code.co_consts), co_names=other(code.co_names))


def warm_up(for_gpu: bool = False, imported: Callable[[], None] = lambda: None) -> None:
    """Import everything, call `imported`, and run a little of it.

    In one thread: a process with threads cannot be forked safely.

    Where children are to use a real GPU, there is no backward pass: torch would start CUDA to count the GPUs, and
    keep the answer for this process and all that are forked from it.
    """
    import torch
    from virtual_cuda import gpu_named

    from gpudojo.grading.watching import MODELLED

    torch.set_num_threads(1)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        _import(LATE)
        # All of our modules: one that is first loaded after student code has run might be the student's.
        for package in ("virtual_cuda", "gpudojo.grading", "gpudojo.submissions"):
            _import_all(package)
        for each in registered().values():
            _import_all(each.package)
            with contextlib.suppress(Exception):
                day(
                    each.name
                )  # now, because isolated children cannot read the files of a day from outside
        imported()
        _train(backward=not for_gpu)
        gpu_named(MODELLED)  # read from a file


def _import(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _import_all(name: str) -> None:
    """Import a package with every module in it that a child may use."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith(("__main__", ".pytest_plugin")):  # which imports pytest
            with contextlib.suppress(Exception):  # also a mistake in a day that is not graded
                importlib.import_module(module.name)


def _train(backward: bool) -> None:
    """A little of everything the exercises do, on the virtual device; it solves none of them."""
    import torch
    from torch import nn
    from virtual_cuda import virtual_cuda

    for _ in range(2):
        with virtual_cuda(devices=2):
            model = nn.Sequential(
                nn.Conv2d(3, 2, 3),
                nn.Flatten(),
                nn.Linear(8, 4),
                nn.BatchNorm1d(4),
                nn.Dropout(0.1),
            )
            model.to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            data = torch.utils.data.TensorDataset(
                torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 2, 3])
            )
            for pictures, classes in torch.utils.data.DataLoader(data, 2):
                with torch.autocast("cuda"):
                    loss = nn.functional.cross_entropy(
                        model(pictures.to("cuda")), classes.to("cuda")
                    )
                if backward:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                loss.item()
            torch.rand(2, device="cuda").argmax().cpu().numpy()
            torch.cuda.synchronize()
            _operate(torch.rand(4, 4, device="cuda"), backward)


def _operate(x: Any, backward: bool) -> None:
    """Common operators. How the virtual device runs one is found out at its first call, which takes a while."""
    import torch

    (
        x[:, 1:],
        x[0],
        x.unsqueeze(0).expand(2, 4, 4),
        x.transpose(0, 1),
        x.permute(1, 0),
        x.T,
        x.unbind(),
    )
    (
        x**2 - x,
        -x,
        x / 2,
        x / (x + 1),
        x * 2,
        x.argmin(),
        x.amax(),
        x.sum(),
        x.mean(0),
        torch.cat([x, x]),
    )
    x.clone().zero_().copy_(x)
    (
        x == x,
        ~(x == 0),
        x != 0,
        (x < x).any(),
        x[x.long()],
        torch.full_like(x, 1),
        x.masked_fill_(x == 0, 1),
    )
    if backward:
        x.detach().requires_grad_().tanh().relu().sum().backward()


MINORS: Final = (
    0,
    2,
    4,
    5,
)  # of version 4, as Colab, VS Code, and older and newer Jupyter write them


def read_notebooks() -> None:
    """Read an empty notebook of each version: nbformat compiles a validator when it meets one for the first time."""
    from gpudojo.grading.load import parse_cell

    for minor in MINORS:
        parse_cell(b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": %d}' % minor)


OWN: Final = ("RssAnon", "RssShmem", "VmSwap", "HugetlbPages")  # memory of a process
FIELDS: Final = ("PPid", "NSpid", "Threads", "RssFile", *OWN)


class Usage(NamedTuple):
    """Bytes that a child holds together with all processes it has started."""

    host: int = 0
    mapped: int = 0  # of files and devices: with CUDA also memory that host and GPU share
    device: int = 0
    threads: int = 0  # of all these processes: how many there are
    processes: int = 0
    waited: float = (
        0.0  # seconds that its first process could have run while others had the processors
    )


class MemoryLimits(NamedTuple):
    """Bytes that a child may hold; of a GPU, where it uses one."""

    host: int
    device: int = 0

    def over_device(self, usage: Usage) -> bool:
        return bool(self.device) and usage.device > self.device + CUDA_DEVICE_BYTES

    def over_host(self, usage: Usage) -> bool:
        if self.device:
            return usage.host + usage.mapped > self.host + CUDA_HOST_BYTES
        return usage.host > self.host


class MemoryWatch:
    """Measures children of this process, each with all processes it has started, less what they share with this one.

    Process namespaces do not matter: /proc is the one this process started with, and counts in its own numbers.
    """

    def __init__(self, gpu: GpuMemoryWatch | None = None) -> None:
        own = _status("self")
        self._here = own.get("NSpid", [])  # this process, from the outermost namespace to its own
        self._shared, self._mapped, self._gpu = _bytes(own, *OWN), _bytes(own, "RssFile"), gpu

    def usages(self) -> dict[int, Usage]:
        """What each child holds, by the process number this process knows it by."""
        if not self._here:
            return {}
        on_gpu = self._gpu.held() if self._gpu is not None else {}
        found = {int(name): _status(name) for name in os.listdir("/proc") if name.isdigit()}
        found = {pid: status for pid, status in found.items() if "PPid" in status}
        owners: dict[int, int | None] = {}

        def child_of(pid: int) -> int | None:
            """The child that a process belongs to."""
            if pid not in owners:
                owners[pid] = None  # ends the search where parents form a loop
                parent = found[pid]["PPid"][0] if pid in found else 0
                if parent == self._here[0]:
                    numbers = found[pid]["NSpid"]
                    owners[pid] = (
                        numbers[len(self._here) - 1] if len(numbers) >= len(self._here) else None
                    )
                elif parent:
                    owners[pid] = child_of(parent)
            return owners[pid]

        usages: dict[int, Usage] = {}
        for pid, status in found.items():
            child = child_of(pid)
            if child is not None:
                host, mapped, device, threads, processes, waited = usages.get(child, Usage())
                host += max(0, _bytes(status, *OWN) - self._shared)
                mapped += max(0, _bytes(status, "RssFile") - self._mapped)
                threads += status.get("Threads", [1])[0]
                waited += _waited(pid) if status["PPid"][0] == self._here[0] else 0.0
                usages[child] = Usage(
                    host, mapped, device + on_gpu.get(pid, 0), threads, processes + 1, waited
                )
        return usages


def _status(name: str) -> dict[str, list[int]]:
    """Fields of a process with the numbers in them; empty where there is no such process."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{name}/status", encoding="ascii", errors="replace") as file,
    ):
        lines = [line.partition(":") for line in file.read().split("\n")]
        return {
            field: [int(word) for word in value.split() if word.isdigit()]
            for field, _, value in lines
            if field in FIELDS
        }
    return {}


def _waited(pid: int) -> float:
    """Seconds that the first thread of a process waited for a processor, less those in which its others ran."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran, waited = (int(word) / 1e9 for word in file.read().split()[:2])
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = sum(map(int, file.read().rpartition(b")")[2].split()[11:13]))
    except (OSError, ValueError):
        return 0.0
    return max(0.0, waited - max(0.0, ticks / TICKS - ran))


def _bytes(status: Mapping[str, list[int]], *fields: str) -> int:
    return sum(status.get(field, [0])[0] for field in fields) << 10


PASSES: Final = 100
MEASURED: Final = 0.2  # seconds between two measurements of the children's memory
TICKS: Final = os.sysconf("SC_CLK_TCK")


def main(number: int, gpu: bool) -> None:
    """Serve requests that come over the socket with that descriptor number."""
    control = socket.socket(fileno=number)
    # One folder for all children; each mounts its own file system there.
    with (
        tempfile.TemporaryDirectory(prefix="dojo-", ignore_cleanup_errors=True) as scratch,
        contextlib.ExitStack() as undo,
    ):
        isolation = prepared(scratch, gpu)
        renamed = RenamedInside()
        sys.meta_path.insert(0, renamed)
        ours = [thing for thing in gc.get_objects() if type(thing) is FunctionType]
        # Here, since they import torch, which must come after the namespaces.
        import torch  # noqa: F401 - alone

        gc.freeze()  # so that `separate_builtins` need not look at all that torch has made
        from virtual_cuda import keep_patches

        from gpudojo.sandbox import child, integrity, reaching

        changed = None
        if LINUX:  # elsewhere a process that has imported torch does not survive being forked
            # To the end: children find the patches of the virtual device made, and only put them in place.
            restore = undo.enter_context(keep_patches())

            def separate() -> None:
                reaching.separate_builtins(ours)
                gc.freeze()  # so that `install` looks only at functions that are made from now on

            warm_up(gpu, separate)  # before code runs, which Python adapts to where it finds them
            restore()
            sys.meta_path.remove(renamed)  # all is imported
        reached = reaching.install(renamed.names.values())
        if LINUX:
            changed = integrity.watch(reached.remove_tracers, reached.rewritten, reached.memory)
        isolation.finish()
        gc.freeze()
        gc.enable()
        run = functools.partial(child.run, isolation=isolation, reaching=reached, changed=changed)
        ForkServer(control, isolation, run, child.Drawings().prepare if LINUX else never).serve()


@dataclass
class Child:
    """A child of the fork server."""

    number: int
    limits: MemoryLimits
    ended: Event = Event.EXITED  # the event that is sent when it has ended
    device_peak: int = 0
    measured: float = 0.0  # seconds that it has waited for a processor
    waited: float = 0.0  # of these, for others than processes of its own
    told: float = 0.0  # to the grader

    def waits(self, usage: Usage) -> bool:
        """Take in what was measured; True if the grader is to know."""
        if usage.processes == 1:
            self.waited += max(0.0, usage.waited - self.measured)
        self.measured = max(self.measured, usage.waited)
        return self.waited > self.told + MEASURED


Prepare = Callable[
    [int, int], bool
]  # gets the number of a job's seeds and the job; True if this process has grown


def never(number: int, job_end: int) -> bool:
    """Prepares nothing."""
    return False


class ForkServer:
    """Starts and ends children on request, and reports each that has ended."""

    def __init__(
        self,
        control: socket.socket,
        isolation: Isolation,
        run: Callable[..., None],
        prepare: Prepare = never,
    ) -> None:
        self.control = control
        self.isolation = isolation
        self.run_child = run
        self.prepare = prepare
        self.children: dict[int, Child] = {}  # by process number
        self.ended = 0  # children
        self.memory = MemoryWatch(isolation.gpu_watch) if LINUX else None
        self.waiting = selectors.DefaultSelector()
        self.seldom = bool(
            self.memory
        )  # whether they are still to be imported, once a child has ended

    def serve(self) -> None:
        """Until the grader is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides what a Ctrl-C ends
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self.waiting.register(self.control, selectors.EVENT_READ)
        self.waiting.register(woken, selectors.EVENT_READ)
        self.control.sendall(EVENT.pack(Event.READY, 0, 0, 0, 0, 0))
        measured = 0.0
        while True:
            ready = self.waiting.select(MEASURED if self.children and self.memory else None)
            if self.memory and self.children and time.monotonic() > measured + MEASURED:
                measured = time.monotonic()
                self._limit_memory(self.memory)
            if self.memory and self.seldom and self.ended and not ready:
                self.seldom = False
                _import(SELDOM)
                with contextlib.suppress(Exception):  # then each child makes its own
                    read_notebooks()
                gc.freeze()
                self.memory = MemoryWatch(self.isolation.gpu_watch)
            for key, _ in ready:
                if key.fileobj is woken:
                    woken.recv(4096)
                    self._reap()
                elif not self._handle_request():
                    for pid in self.children:
                        _kill(pid)
                    return

    def _limit_memory(self, memory: MemoryWatch) -> None:
        for pid, usage in memory.usages().items():
            if (child := self.children.get(pid)) is None:
                continue
            child.device_peak = max(child.device_peak, usage.device)
            if child.waits(usage):
                child.told = child.waited
                self.control.sendall(
                    EVENT.pack(Event.WAITED, child.number, 0, 0, int(child.told * 1e6), 0)
                )
            if child.limits.over_host(usage):
                child.ended = Event.OVER_MEMORY
            elif child.limits.over_device(usage):
                child.ended = Event.OVER_GPU_MEMORY
            # Without a user of its own, the kernel does not count a child's processes apart from its neighbours'.
            if child.ended != Event.EXITED or usage.threads > PROCESSES_AT_MOST:
                _kill(pid)

    def _handle_request(self) -> bool:
        """One request; False where the grader is gone."""
        message, descriptors, _, _ = socket.recv_fds(self.control, REQUEST.size, 3)
        if len(message) < REQUEST.size:
            return False
        request, number, memory, gpu_memory, seeds = REQUEST.unpack(message)
        if request == Request.KILL:
            for pid in [pid for pid, child in self.children.items() if child.number == number]:
                _kill(pid)
        elif request == Request.SPAWN:
            if descriptors and self.prepare(seeds, descriptors[0]):
                gc.freeze()
                self.memory = MemoryWatch(self.isolation.gpu_watch) if self.memory else None
            pid = self._spawn(number, descriptors)
            if pid > 0:
                self.children[pid] = Child(number, MemoryLimits(memory, gpu_memory))
        return True

    def _spawn(self, number: int, descriptors: list[int]) -> int:
        try:
            self.isolation.before_fork()
            pid = os.fork()
        except OSError:
            self.control.sendall(EVENT.pack(Event.FAILED, number, 0, 0, 0, 0))
            pid = -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.waiting.close()
            code = 1
            try:
                self.run_child(number, *descriptors)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)  # without cleaning up what belongs to the fork server
        with contextlib.suppress(OSError):
            self.isolation.after_fork()
        for descriptor in descriptors:
            os.close(descriptor)
        return pid

    def _reap(self) -> None:
        """Report every child that has ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is None:  # an orphan of a submission
                continue
            self.ended += 1
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # the rest of it, where no namespace has ended it
            self._kill_orphans()
            peak = usage.ru_maxrss if LINUX else usage.ru_maxrss // 1024
            cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
            code = os.waitstatus_to_exitcode(status)
            self.control.sendall(
                EVENT.pack(child.ended, child.number, code, peak, cpu, child.device_peak >> 10)
            )

    def _kill_orphans(self) -> None:
        """Without a process namespace, a process that a submission has detached becomes a child of the fork server."""
        if not LINUX or os.getpid() == 1:
            return
        for _ in range(PASSES):  # several, since orphans may fork meanwhile
            own = [
                int(name)
                for name in os.listdir("/proc")
                if name.isdigit() and _status(name).get("PPid") == [os.getpid()]
            ]
            orphans = [pid for pid in own if pid not in self.children]
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
            if not orphans:
                return


def _kill(pid: int) -> None:
    """A child with its process group; not a group of ours where it has none of its own yet."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)
