"""The fork server: a warm process that forks one isolated child per submission."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from typing import Final

from gpudojo.model.catalogue import registered
from gpudojo.sandbox.gpus import DeviceScales, proc_of_its_own
from gpudojo.sandbox.isolation import DEVICE
from gpudojo.sandbox.protocol import ASKED, EXITED, FAILED, KILL, READY, SPAWN, TOLD, TOO_HEAVY, TOO_HEAVY_THERE

# What probes and students' files import late; each costs milliseconds to seconds.
LATE: Final = (
    *("torch.optim", "torch._dynamo", "torch.utils.checkpoint", "torch.utils.data", "torch.profiler", "torch.amp"),
    *("torch.distributed", "torch.nn.parallel", "torch.utils.benchmark", "torch.testing", "torch.func", "torch.fx"),
    *("numpy", "nbformat", "json", "math", "statistics", "collections", "contextlib", "functools", "itertools"),
    *("dataclasses", "typing", "time", "timeit", "copy", "random", "csv", "io", "re", "gc", "warnings", "inspect"),
    *(
        "multiprocessing.connection",
        "tempfile",
        "difflib",
        "unittest.mock",
        "rich.console",
        "gpudojo.sprite_display",
    ),
)


def warm_up(for_gpu: bool = False) -> None:
    """With one thread and no parallel operation: a process with threads cannot be forked safely.

    Where children are to use a real GPU, nothing is trained either. Torch asks how many there are at the first
    backward pass, keeps the answer for the process and all that are forked from it, and begins CUDA to find out.
    """
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in LATE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        # All of ours: what is loaded after student code has run might be somebody else's.
        for package in (
            "virtual_cuda",
            "gpudojo.grading",
            "gpudojo.submissions",
            *(each.package for each in registered().values()),
        ):
            _whole(package)
        _train(learns=not for_gpu)


def _whole(name: str) -> None:
    """A package with every module in it."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(Exception):  # also a mistake in a day that is not graded
                importlib.import_module(module.name)


def _train(learns: bool) -> None:
    """A little of everything the exercises do, on the virtual device; no solution of any of them."""
    import torch
    from torch import nn
    from virtual_cuda import virtual_cuda

    for _ in range(2):
        with virtual_cuda(devices=2):
            model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
            model.to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            data = torch.utils.data.TensorDataset(torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 2, 3]))
            for pictures, classes in torch.utils.data.DataLoader(data, 2):
                with torch.autocast("cuda"):
                    loss = nn.functional.cross_entropy(model(pictures.to("cuda")), classes.to("cuda"))
                if learns:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                loss.item()
            torch.rand(2, device="cuda").argmax().cpu().numpy()
            torch.cuda.synchronize()
    with open(os.devnull, "w"):
        pass


LINUX: Final = sys.platform == "linux"
PASSES: Final = 100
WEIGHED: Final = 0.2  # seconds from one weighing of the children to the next


def main(number: int, gpu: bool) -> None:
    control = socket.socket(fileno=number)
    devices = DeviceScales() if LINUX and gpu else None
    processes = not gpu or (LINUX and proc_of_its_own())
    if LINUX:
        own_namespaces(processes)
    from gpudojo.sandbox import child
    from gpudojo.sandbox.isolation import Fences

    # One folder for all children, each of which sees its own file system there; empty to everybody else.
    with tempfile.TemporaryDirectory(prefix="dojo-") as scratch:
        if os.getuid() == 0:
            os.chmod(scratch, 0o711)
        fences = Fences(scratch, gpu, processes)
        fences.prepare()
        if LINUX:  # elsewhere a process that has imported torch does not survive being forked
            child.prepare(gpu)
        if devices is not None:
            devices.ready()
            fences.layers[DEVICE] = devices.why
        gc.collect()
        gc.freeze()
        _serve(control, fences, devices)


def own_namespaces(processes: bool = True) -> None:
    """Become the first process of namespaces of our own; the original process only waits for it."""
    from gpudojo.sandbox import kernel

    uid, gid = os.getuid(), os.getgid()
    with contextlib.suppress(OSError):
        kernel.adopt_orphans()
    try:
        flags = kernel.NEWPID if processes else 0
        if uid == 0:
            kernel.unshare(flags)
        else:
            kernel.unshare(kernel.NEWUSER | flags)
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
                os.write(descriptor, text.encode())
                os.close(descriptor)
    except OSError:
        return  # the fences find out for themselves what is missing
    pid = os.fork()
    if pid:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.die_with_parent()


def _serve(control: socket.socket, fences: object, devices: DeviceScales | None) -> None:
    from gpudojo.sandbox.isolation import Fences
    from gpudojo.sandbox.memory_watch import Allowed, Scales

    assert isinstance(fences, Fences)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides what a Ctrl-C ends
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    children: dict[int, int] = {}  # process → number
    limits: dict[int, Allowed] = {}  # process → what it may hold with all it has started
    heavy: dict[int, int] = {}  # process → what is told of it when it has ended
    there: dict[int, int] = {}  # process → the most it has held of the GPU
    scales = Scales(devices) if LINUX else None
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    control.sendall(TOLD.pack(READY, 0, 0, 0, 0, 0))
    weighed = 0.0
    while True:
        ready = waiting.select(WEIGHED if children and scales else None)
        if scales and children and time.monotonic() > weighed + WEIGHED:
            weighed = time.monotonic()
            for pid, load in scales.loads().items():
                if pid in children:
                    there[pid] = max(there.get(pid, 0), load.device)
                    if limits[pid].too_much_here(load):
                        heavy[pid] = TOO_HEAVY
                    elif limits[pid].too_much_there(load):
                        heavy[pid] = TOO_HEAVY_THERE
            for pid in heavy.keys() & children.keys():
                _end(pid)
        for key, _ in ready:
            if key.fileobj is woken:
                woken.recv(4096)
                _bury(control, children, heavy, there)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, ASKED.size, 3)
            if len(message) < ASKED.size:  # the grader is gone
                for pid in children:
                    _end(pid)
                return
            request, number, memory, gpu_memory = ASKED.unpack(message)
            if request == KILL:
                for pid in [pid for pid, known in children.items() if known == number]:
                    _end(pid)
            elif request == SPAWN:
                pid = _spawn(control, fences, number, descriptors, waiting)
                if pid > 0:
                    children[pid], limits[pid] = number, Allowed(memory, gpu_memory)


def _spawn(
    control: socket.socket,
    fences: object,
    number: int,
    descriptors: list[int],
    waiting: selectors.BaseSelector,
) -> int:
    from gpudojo.sandbox import child
    from gpudojo.sandbox.isolation import Fences

    assert isinstance(fences, Fences)
    try:
        fences.before_fork()
        pid = os.fork()
    except OSError:
        control.sendall(TOLD.pack(FAILED, number, 0, 0, 0, 0))
        pid = -1
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        waiting.close()
        job_end, evidence_end, output_end = descriptors
        code = 1
        try:
            child.run(number, job_end, evidence_end, output_end, fences)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)  # what was inherited is the nursery's to clean up
    with contextlib.suppress(OSError):
        fences.after_fork()
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _bury(control: socket.socket, children: dict[int, int], heavy: dict[int, int], there: dict[int, int]) -> None:
    """Tell of every child that has ended."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        number = children.pop(pid, None)
        if number is None:  # an orphan of a submission's own
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # what is left of it, where there was no namespace to end it
        _end_orphans(children)
        largest = usage.ru_maxrss if LINUX else usage.ru_maxrss // 1024
        used = int((usage.ru_utime + usage.ru_stime) * 1e6)
        event, device = heavy.pop(pid, EXITED), there.pop(pid, 0) >> 10
        control.sendall(TOLD.pack(event, number, os.waitstatus_to_exitcode(status), largest, used, device))


def _end_orphans(children: dict[int, int]) -> None:
    """Without a process namespace, what a submission has detached from itself becomes a child of the nursery."""
    if not LINUX or os.getpid() == 1:
        return
    for _ in range(PASSES):  # what forks faster than it is ended may need some more
        orphans = [pid for pid in _own_children() if pid not in children]
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
        if not orphans:
            return


def _own_children() -> list[int]:
    own, found = os.getpid(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == own:
                found.append(int(name))
    return found


def _end(pid: int) -> None:
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), "gpu" in sys.argv[2:])
