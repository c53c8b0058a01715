"""Starts the fork server, and starts and ends children through it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import gpudojo
from gpudojo.model.errors import NoNursery
from gpudojo.sandbox.gpus import hidden
from gpudojo.sandbox.protocol import (
    ASKED,
    EXITED,
    FAILED,
    KILL,
    READY,
    SPAWN,
    TOLD,
    TOO_HEAVY,
    TOO_HEAVY_THERE,
    Job,
    encode_job,
)

STARTING: Final = 120.0  # seconds: importing torch from a slow disk
STARTS: Final = 3
# Everything a child sees of the environment; what else the grader's holds is its own.
PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass
class Running:
    """A child, seen from the grader: the ends of its pipes."""

    number: int
    evidence: int
    output: int

    def close(self) -> None:
        for end in (self.evidence, self.output):
            with contextlib.suppress(OSError):
                os.close(end)


@dataclass(frozen=True)
class Exit:
    """How a child ended: the exit status as `subprocess` counts it, or None where it could not be forked at all."""

    number: int
    status: int | None
    peak_bytes: int
    cpu_seconds: float
    too_heavy: bool = False  # ended because its processes together held more memory than they may
    device_bytes: int = 0  # of the GPU, at most
    there: bool = False  # it was the GPU's memory that it held too much of


class Keeper:
    """The nursery's handle. `gpu` lets children use the machine's real one."""

    def __init__(self, gpu: bool = False) -> None:
        self.gpu = gpu
        self._numbers = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._heard = bytearray()
        self._said: IO[bytes] | None = None

    def fileno(self) -> int:
        assert self._control is not None
        return self._control.fileno()

    def start(self) -> None:
        here, there = socket.socketpair()
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USER": "student"}
        environment |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
        environment |= {"KINETO_LOG_LEVEL": "99"}
        environment |= hidden() if self.gpu else {"CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-P", "-c", _START, str(Path(gpudojo.__file__).resolve().parents[1])]
        command += [str(there.fileno()), *(["gpu"] if self.gpu else [])]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the nursery lives
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,  # a Ctrl-C is the grader's to handle
        )
        there.close()
        self._control = here
        self._heard.clear()

    def started(self) -> None:
        """Start the nursery and wait for it; one that somebody ended meanwhile is started again."""
        for left in reversed(range(STARTS)):
            self.start()
            try:
                self.wait_ready()
                return
            except NoNursery as error:
                self.close()
                if error.said or not left:
                    raise

    def wait_ready(self, seconds: float = STARTING) -> None:
        assert self._control is not None
        self._control.settimeout(seconds)
        try:
            message = self._control.recv(TOLD.size, socket.MSG_WAITALL)
        except TimeoutError:
            raise NoNursery(f"it was not ready after {seconds:g} s", self._last_words()) from None
        finally:
            self._control.settimeout(None)
        if len(message) < TOLD.size or TOLD.unpack(message)[0] != READY:
            raise NoNursery("it ended while it started", self._last_words())

    def _last_words(self) -> str:
        if self._said is None:
            return ""
        self._said.seek(0)
        return self._said.read()[-2000:].decode(errors="replace").strip()

    def spawn(self, job: Job) -> Running:
        """Raises OSError where the nursery is gone."""
        assert self._control is not None
        self._numbers += 1
        with tempfile.TemporaryFile() as file, contextlib.ExitStack() as ends:
            file.write(encode_job(job))
            file.flush()
            evidence, evidence_end = os.pipe()
            output, output_end = os.pipe()
            running = Running(self._numbers, evidence, output)
            ends.callback(os.close, evidence_end)
            ends.callback(os.close, output_end)
            try:
                message = ASKED.pack(SPAWN, self._numbers, job.memory, job.gpu_memory if job.on_gpu else 0)
                socket.send_fds(self._control, [message], [file.fileno(), evidence_end, output_end])
            except OSError:
                running.close()
                raise
        os.set_blocking(evidence, False)
        os.set_blocking(output, False)
        return running

    def kill(self, number: int) -> None:
        assert self._control is not None
        with contextlib.suppress(OSError):
            self._control.sendall(ASKED.pack(KILL, number, 0, 0))

    def heard(self) -> list[Exit] | None:
        """The children that have ended, to be called when the handle is readable; None when the nursery itself has."""
        assert self._control is not None
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        self._heard += data
        found = []
        while len(self._heard) >= TOLD.size:
            event, number, status, largest, used, device = TOLD.unpack_from(self._heard)
            del self._heard[: TOLD.size]
            if event in (EXITED, FAILED, TOO_HEAVY, TOO_HEAVY_THERE):
                ended, there = None if event == FAILED else status, event == TOO_HEAVY_THERE
                heavy = there or event == TOO_HEAVY
                found.append(Exit(number, ended, largest << 10, used / 1e6, heavy, device << 10, there))
        return found

    def close(self) -> None:
        """End the nursery and everything it has started."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None

    def restart(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
        self.close()
        self.started()


# The source root holds the two packages and nothing else: no solutions, no tests.
_START: Final = """
import sys
if sys.argv[1] not in sys.path:  # not another gpudojo than the one that asks
    sys.path.insert(0, sys.argv[1])
from gpudojo.sandbox.fork_server import main
main(int(sys.argv[2]), "gpu" in sys.argv[3:])
"""
