"""Starts the fork server, and starts and ends children through it.

Few modules are imported until it is started: it takes longest of all, and they can be imported
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import gpudojo

if TYPE_CHECKING:
    from gpudojo.sandbox.protocol import Job

STARTING: Final = 120.0  # seconds: torch may be imported from a slow disk
STARTS: Final = 3
OUTPUT_PIPE: Final = 256 << 10  # bytes; the system's own choice is 64 KiB
# What children see of the grader's environment; the rest may hold secrets.
PASSED_ON: Final = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "SYSTEMROOT",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
)


class ChildPipes(NamedTuple):
    """The grader's ends of a child's pipes."""

    number: int
    evidence: int
    output: int

    def close(self) -> None:
        """Close both ends; one that is closed already stays so."""
        for end in (self.evidence, self.output):
            with contextlib.suppress(OSError):
                os.close(end)


class ChildExit(NamedTuple):
    """How a child ended."""

    number: int
    code: int | None  # as `subprocess` counts it; None where it could not be forked
    peak_bytes: int
    cpu_seconds: float
    over_memory: bool = False  # ended because its processes together held more memory than allowed
    device_bytes: int = 0  # peak, of the GPU
    on_gpu: bool = False  # it was the GPU's memory


class ChildWaited(NamedTuple):
    """How long a child has waited so far for a processor that others used."""

    number: int
    seconds: float


class ForkClient:
    """Starts the fork server, and children through it.

    `gpu` lets children use the machine's real GPU.
    """

    def __init__(self, gpu: bool = False) -> None:
        """Start nothing yet; `gpu` lets children use the machine's real GPU."""
        self.gpu = gpu
        self._numbers = 0
        self._seeds: dict[str, int] = {}  # of the last job
        self._seeds_number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._received = bytearray()
        self._ready = False
        self._log: IO[bytes] | None = None

    @property
    def started(self) -> bool:
        return self._process is not None

    def fileno(self) -> int:
        """The descriptor that is readable when there are events: `select` asks for it."""
        assert self._control is not None
        return self._control.fileno()

    def start(self) -> None:
        """Start the fork server, the process from which children start, without waiting for it.

        What it prints goes to a temporary file. Raises OSError if it cannot be started.
        """
        here, there = socket.socketpair()
        root = os.path.dirname(os.path.dirname(os.path.realpath(gpudojo.__file__)))
        command = [sys.executable, "-P", "-c", _START, root, str(there.fileno())]
        if self.gpu:
            command.append("gpu")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the fork server lives
        self._process = subprocess.Popen(
            command,
            env=_environment_of_fork_server(self.gpu),
            cwd="/",
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C is the grader's to handle
        )
        there.close()
        self._control = here
        self._ready = False
        self._received.clear()

    def start_and_wait(self) -> None:
        """Start the fork server, if that has not been done, and wait until it is ready.

        It is started again where it was killed or says nothing, a few times in all. Raises
        ForkServerFailed where it ends with a message, takes too long, or is killed each time, and
        OSError where it cannot be started.
        """
        from gpudojo.model.errors import ForkServerFailed

        for left in reversed(range(STARTS)):
            if not self.started:
                self.start()
            try:
                self.wait_ready()
                return
            except ForkServerFailed as error:
                self.close()
                if error.log or not left:
                    raise

    def wait_ready(self) -> None:
        """Wait until the fork server can start children.

        Raises ForkServerFailed where it ends before that, or takes too long.
        """
        from gpudojo.model.errors import ForkServerFailed
        from gpudojo.sandbox.protocol import EVENT, Event

        assert self._control is not None
        self._control.settimeout(STARTING)
        try:
            message = self._control.recv(EVENT.size, socket.MSG_WAITALL)
        except TimeoutError:
            raise ForkServerFailed(
                f"it was not ready after {STARTING:g} s", self._log_text()
            ) from None
        finally:
            self._control.settimeout(None)
        if len(message) < EVENT.size or EVENT.unpack(message)[0] != Event.READY:
            raise ForkServerFailed("it ended while it started", self._log_text())
        self._ready = True

    def _log_text(self) -> str:
        """The end of what the fork server has printed, at most 2000 bytes."""
        assert self._log is not None
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace").strip()

    def spawn(self, job: Job) -> ChildPipes:
        """Start a child and return our ends of its pipes.

        The ends do not block. What becomes of the child is told by `read_events`, under its
        number. Raises ConnectionError where the fork server is gone, and another OSError where the
        machine lacks space for temporary files, or descriptors.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        import msgspec

        from gpudojo.sandbox.protocol import REQUEST, Request

        assert self._control is not None
        self._numbers += 1
        with tempfile.TemporaryFile() as file, contextlib.ExitStack() as ends:
            file.write(msgspec.msgpack.encode(job))
            file.flush()
            # Our ends are returned. The child's ends are closed here once they have been sent.
            evidence, evidence_end = os.pipe()
            ends.callback(os.close, evidence_end)
            try:
                output, output_end = os.pipe()
            except OSError:
                os.close(evidence)
                raise
            ends.callback(os.close, output_end)
            _enlarge_pipe(output)
            pipes = ChildPipes(self._numbers, evidence, output)
            try:
                gpu_memory = 0
                if job.on_gpu:
                    gpu_memory = job.gpu_memory
                message = REQUEST.pack(
                    Request.SPAWN, self._numbers, job.memory, gpu_memory, self._number_of(job.seeds)
                )
                socket.send_fds(self._control, [message], [file.fileno(), evidence_end, output_end])
            except OSError:
                pipes.close()
                raise
        os.set_blocking(evidence, False)
        os.set_blocking(output, False)
        return pipes

    def _number_of(self, seeds: dict[str, int]) -> int:
        """A number for these seeds. It changes if they are not those of the job before."""
        if seeds != self._seeds:
            self._seeds = seeds
            self._seeds_number += 1
        return self._seeds_number

    def kill(self, number: int) -> None:
        """End a child. Nothing happens where the fork server is gone."""
        from gpudojo.sandbox.protocol import REQUEST, Request

        assert self._control is not None
        with contextlib.suppress(OSError):
            self._control.sendall(REQUEST.pack(Request.KILL, number, 0, 0, 0))

    def read_events(self) -> list[ChildExit | ChildWaited] | None:
        """Read what became of children. Returns None where the fork server has ended.

        To be called when the client is readable.
        """
        from gpudojo.sandbox.protocol import EVENT, Event

        assert self._control is not None
        data = b""
        with contextlib.suppress(OSError):
            data = self._control.recv(1 << 16)
        if not data:
            return None
        self._received += data
        # Only whole events: the rest of the last one may still be on its way.
        whole = len(self._received) // EVENT.size * EVENT.size
        found: list[ChildExit | ChildWaited] = []
        for event, number, code, peak, cpu, device in EVENT.iter_unpack(
            bytes(self._received[:whole])
        ):
            if event == Event.WAITED:
                found.append(ChildWaited(number, cpu / 1e6))
                continue
            if event == Event.FAILED:
                ended = None
            else:
                ended = code
            on_gpu = event == Event.OVER_GPU_MEMORY
            over = on_gpu or event == Event.OVER_MEMORY
            found.append(
                ChildExit(number, ended, peak << 10, cpu / 1e6, over, device << 10, on_gpu)
            )
        del self._received[:whole]
        return found

    def close(self) -> None:
        """End the fork server and everything it has started, and forget it.

        Waits up to 5 seconds, then kills it. Nothing happens where none was started.
        """
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            if not self._ready:  # it imports, and would not notice
                self._process.kill()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def restart(self) -> None:
        """Kill the fork server, and start another one and wait for it.

        Raises ForkServerFailed where that does not become ready, and OSError where it cannot be
        started.
        """
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
        self.close()
        self.start_and_wait()


def _environment_of_fork_server(gpu: bool) -> dict[str, str]:
    """The environment variables of the fork server: little of ours, one thread, and no GPU.

    With `gpu` the GPUs are only hidden: children may show them again.
    """
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment |= {
        "OMP_NUM_THREADS": "1",
        # `torch.compile` needs a C++ compiler, which children do not see: without one, run as is.
        "TORCHDYNAMO_SUPPRESS_ERRORS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "USER": "student",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "KINETO_LOG_LEVEL": "99",
    }
    if gpu:
        from gpudojo.sandbox.real_gpus import variables_that_hide_gpus

        return environment | variables_that_hide_gpus()
    return environment | {"CUDA_VISIBLE_DEVICES": ""}


def _enlarge_pipe(end: int) -> None:
    """Let a pipe hold more: a child that prints a lot waits less often for a busy grader.

    Nothing happens where the system does not allow it.
    """
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, OUTPUT_PIPE)


# The source root holds the two packages and nothing else: no solutions, no tests.
_START: Final = """
import gc, sys
gc.disable()  # until all is imported: little is garbage, and looking takes a tenth of the time
if sys.argv[1] not in sys.path:  # not another gpudojo than the one that asks
    sys.path.insert(0, sys.argv[1])
from gpudojo.sandbox.fork_server import main
main(int(sys.argv[2]), "gpu" in sys.argv[3:])
"""
