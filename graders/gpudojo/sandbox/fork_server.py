"""The fork server: a warm process that forks one isolated child per submission.

It must have one thread, and must not have touched CUDA; `warm_up` says why. So nothing here starts
a thread, and the driver is asked in a process of its own (`real_gpus.GpuMemoryWatch`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from gpudojo.sandbox.isolation import LINUX, PROCESSES_AT_MOST, Isolation, prepare_isolation
from gpudojo.sandbox.memory_watch import (
    MemoryLimits,
    MemoryWatch,
    Usage,
    status_of,
    statuses_of_all,
)
from gpudojo.sandbox.protocol import EVENT, REQUEST, Event, Request
from gpudojo.sandbox.warm_up import warm_up, warm_up_rare

assert sys.platform != "win32"  # forks

MEASURING_SECONDS: Final = 0.2  # between two measurements of the children's memory
ORPHAN_PASSES: Final = 100

# Gets the number of a job's seeds and the descriptor of the job; True if this process has grown.
Prepare = Callable[[int, int], bool]


def main(control_number: int, gpu: bool) -> None:
    """Serve requests that come over the socket with that descriptor number. `gpu` allows a GPU.

    The order matters: namespaces before torch, all imports before the watch over student code, and
    the machine's file system is left last. This process is confined and watched for good. Returns
    when the grader is gone. Raises what stops it from starting, such as OSError or an error of the
    virtual device.
    """
    control = socket.socket(fileno=control_number)
    # One folder for all children; each mounts its own file system there.
    with (
        tempfile.TemporaryDirectory(prefix="dojo-", ignore_cleanup_errors=True) as scratch,
        contextlib.ExitStack() as undo,
    ):
        isolation = prepare_isolation(scratch, gpu)
        # Here, since they import torch, which must come after the namespaces.
        from virtual_cuda.hooks import keep_patches

        from gpudojo.grading.student_code import run_students_code_by
        from gpudojo.grading.thread_tracing import trace_threads
        from gpudojo.sandbox import child
        from gpudojo.sandbox.shared_drawings import SharedDrawings
        from gpudojo.sandbox.tampering.stacks import forget_greenlets
        from gpudojo.sandbox.tampering.watch import Watch

        # To the end: children find the patches of the virtual device made, and only put them in
        # place.
        undo_patches = undo.enter_context(keep_patches())
        if LINUX:  # elsewhere a process that has imported torch does not survive being forked
            warm_up(gpu)
            undo_patches()
        watch = Watch(undo_patches)
        run_students_code_by(watch)
        forget_greenlets()
        trace_threads()
        isolation.finish()
        gc.freeze()
        gc.enable()
        run = functools.partial(child.run, isolation=isolation, watch=watch)
        prepare = SharedDrawings().prepare if LINUX else prepare_nothing
        ForkServer(control, isolation, run, prepare).serve()


@dataclass
class Child:
    """A child of the fork server."""

    number: int
    limits: MemoryLimits
    ended: Event = Event.EXITED  # the event that is sent when it has ended
    device_peak: int = 0  # bytes
    measured_wait: float = 0.0  # seconds that it has waited for a processor
    waited: float = 0.0  # of these, for processes other than its own
    reported_wait: float = 0.0  # of these, what the grader knows

    def add_wait(self, usage: Usage) -> bool:
        """Count the wait that was measured. Returns True if the grader is to know of it.

        Waits of a child with several processes do not count: they may have waited for each other.
        """
        if usage.processes == 1:
            self.waited += max(0.0, usage.waited - self.measured_wait)
        self.measured_wait = max(self.measured_wait, usage.waited)
        return self.waited > self.reported_wait + MEASURING_SECONDS


def prepare_nothing(seeds_number: int, job_end: int) -> bool:
    """Prepare nothing for a job."""
    return False


class ForkServer:
    """Starts and ends children on request, and reports each that has ended.

    `run_child` is what a child does; it gets its number and the descriptors of the request.
    """

    def __init__(
        self,
        control: socket.socket,
        isolation: Isolation,
        run_child: Callable[..., None],
        prepare: Prepare = prepare_nothing,
    ) -> None:
        """Serve nothing yet; `control` is the socket to the grader.

        `run_child` is what a child does. `prepare` is called before each fork, with the number of
        the job's seeds. What this process holds in memory is measured now.
        """
        self.control = control
        self.isolation = isolation
        self.run_child = run_child
        self.prepare = prepare
        self.children: dict[int, Child] = {}  # by process number
        self.has_ended_one = False
        self.has_rare_imports = False
        self.memory: MemoryWatch | None = None  # only Linux has a /proc to measure by
        self._measure_own_memory()
        self.selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Answer requests, limit children and report their ends, until the grader is gone.

        Then all children are killed. While nothing is to be done, it imports once what few children
        need. Ctrl-C is ignored from now on. Raises OSError where the grader cannot be told
        something.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides what a Ctrl-C ends
        woken = _wake_on_ended_child()
        self.selector.register(self.control, selectors.EVENT_READ)
        self.selector.register(woken, selectors.EVENT_READ)
        self._send(Event.READY, 0)
        next_measurement = 0.0
        while True:
            measuring = self.memory is not None and bool(self.children)
            ready = self.selector.select(MEASURING_SECONDS if measuring else None)
            if measuring and time.monotonic() > next_measurement:
                next_measurement = time.monotonic() + MEASURING_SECONDS
                self._limit_memory()
            if not ready:
                self._import_rare()
            for key, _ in ready:
                if key.fileobj is woken:
                    woken.recv(4096)
                    self._report_ended()
                elif not self._handle_request():
                    for pid in self.children:
                        _kill_with_group(pid)
                    return

    def _send(
        self,
        event: Event,
        number: int,
        code: int = 0,
        peak_kib: int = 0,
        microseconds: int = 0,
        device_peak_kib: int = 0,
    ) -> None:
        """Tell the grader what happened to the child with that number.

        Peaks of memory are in KiB, processor time or waits in microseconds. Raises OSError if the
        grader is gone.
        """
        self.control.sendall(
            EVENT.pack(event, number, code, peak_kib, microseconds, device_peak_kib)
        )

    def _measure_own_memory(self) -> None:
        """Measure children from now on by what they hold besides what this process holds now."""
        if LINUX:
            self.memory = MemoryWatch(self.isolation.gpu_watch)

    def _import_rare(self) -> None:
        """Import what few children need, once; called when nothing is to be done.

        It waits until a child has ended, so that the first one is not kept waiting.
        """
        if not LINUX or not self.has_ended_one or self.has_rare_imports:
            return
        self.has_rare_imports = True
        warm_up_rare()
        gc.freeze()
        self._measure_own_memory()

    def _limit_memory(self) -> None:
        """Measure every child. Reports long waits, and kills a child that is over a limit.

        What was measured, and why it was killed, is kept in the child. Raises OSError if /proc
        cannot be listed or the grader is gone.
        """
        if self.memory is None:
            return
        for pid, usage in self.memory.usages().items():
            child = self.children.get(pid)
            if child is None:
                continue
            child.device_peak = max(child.device_peak, usage.device)
            if child.add_wait(usage):
                child.reported_wait = child.waited
                self._send(Event.WAITED, child.number, microseconds=int(child.waited * 1e6))
            if child.limits.over_host(usage):
                child.ended = Event.OVER_MEMORY
            elif child.limits.over_device(usage):
                child.ended = Event.OVER_GPU_MEMORY
            # Without a user of its own, the kernel does not count a child's processes apart from
            # its neighbours'.
            if child.ended != Event.EXITED or usage.threads > PROCESSES_AT_MOST:
                _kill_with_group(pid)

    def _handle_request(self) -> bool:
        """Read one request and do it: fork a child, or kill one.

        `prepare` is called before a fork; if this process has grown by that, its own memory is
        measured anew. Returns False if the grader is gone. Raises OSError where it cannot be told
        that a fork failed.
        """
        message, descriptors, _, _ = socket.recv_fds(self.control, REQUEST.size, 3)
        if len(message) < REQUEST.size:
            return False
        request, number, memory, gpu_memory, seeds_number = REQUEST.unpack(message)
        if request == Request.KILL:
            self._kill_child(number)
        elif request == Request.SPAWN:
            if descriptors and self.prepare(seeds_number, descriptors[0]):
                gc.freeze()
                self._measure_own_memory()
            pid = self._spawn(number, descriptors)
            if pid is not None:
                self.children[pid] = Child(number, MemoryLimits(memory, gpu_memory))
        return True

    def _kill_child(self, number: int) -> None:
        for pid, child in self.children.items():
            if child.number == number:
                _kill_with_group(pid)

    def _spawn(self, number: int, descriptors: list[int]) -> int | None:
        """Fork a child, and close the descriptors here.

        Returns its process number; None if there can be no more processes, which is reported. In
        the child this does not return. Raises OSError if the grader is gone when that is reported.
        """
        pid: int | None = None
        try:
            self.isolation.before_fork()
            pid = os.fork()
        except OSError:
            self._send(Event.FAILED, number)
        if pid == 0:
            self._be_child(number, descriptors)
        with contextlib.suppress(OSError):  # where `before_fork` has failed
            self.isolation.after_fork()
        for descriptor in descriptors:
            os.close(descriptor)
        return pid

    def _be_child(self, number: int, descriptors: list[int]) -> NoReturn:
        """Run the submission, and end the process without cleaning up after the fork server.

        `number` is the child's, `descriptors` are the files that came with the request. An error is
        printed, and the exit code is 1; otherwise it is 0.
        """
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.selector.close()
            self.run_child(number, *descriptors)
            code = 0
        except BaseException:  # a copy of the fork server must not go on to serve
            traceback.print_exc()
        finally:
            os._exit(code)

    def _report_ended(self) -> None:
        """Report every child that has ended, and kill what is left of its processes.

        It is no longer among `children`. Raises OSError if the grader is gone or /proc cannot be
        listed.
        """
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
            self.has_ended_one = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # the rest of it, where no namespace has ended it
            self._kill_orphans()
            self._send(
                child.ended,
                child.number,
                code=os.waitstatus_to_exitcode(status),
                peak_kib=usage.ru_maxrss if LINUX else usage.ru_maxrss // 1024,
                microseconds=int((usage.ru_utime + usage.ru_stime) * 1e6),
                device_peak_kib=child.device_peak >> 10,
            )

    def _kill_orphans(self) -> None:
        """Kill the processes that submissions have detached.

        Without process namespaces they have become children of the fork server. Raises OSError if
        /proc cannot be listed.
        """
        if not LINUX or self.isolation.own_processes is not None:
            return
        for _ in range(ORPHAN_PASSES):  # several, since orphans may fork meanwhile
            orphans = _child_processes() - self.children.keys()
            if not orphans:
                return
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)


def _wake_on_ended_child() -> socket.socket:
    """A socket that becomes readable whenever a child has ended.

    Replaces the handler of SIGCHLD in this process.
    """
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # not ignored: then nobody could wait for it
    signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)
    return woken


def _child_processes() -> set[int]:
    """The numbers of all processes whose parent is this one. Raises OSError.

    /proc may be that of an outer namespace, with other numbers.
    """
    own_numbers = status_of("self").get("NSpid", [])
    if not own_numbers:
        return set()
    outermost = own_numbers[0]
    depth = len(own_numbers)
    statuses = statuses_of_all().values()
    children = [each["NSpid"] for each in statuses if each["PPid"] == [outermost]]
    return {numbers[depth - 1] for numbers in children if len(numbers) >= depth}


def _kill_with_group(pid: int) -> None:
    """Kill a child and its process group; not a group of ours if it has none of its own yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
