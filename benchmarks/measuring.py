"""What does a command cost? Its wall-clock time, the processor time and the peak memory of it and all it starts.

Run as a script it stands between: it starts the command, adopts whatever the command leaves behind, so that no child's
processor time is lost, and looks at the memory of the whole tree four times a second. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PAUSE, LOOK, ORPHANS = (
    0.01,
    0.25,
    10.0,
)  # seconds between two polls, between two looks, and for what is left behind
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Measured:
    """Seconds, seconds of all processors together, and bytes; exit code and what was printed."""

    wall: float
    cpu: float
    peak: int
    code: int
    output: str = ""


def measured(
    command: list[str], cwd: Path, environment: dict[str, str], limit: float = 600.0
) -> Measured:
    """Run a command to its end; after `limit` seconds it is ended with all that it has started."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        run = subprocess.run(
            [sys.executable, "-S", "-E", __file__, str(report), str(limit), *command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output = run.stdout.decode(errors="replace")
        if not report.exists():
            raise RuntimeError(f"{command[0]} could not be started: {output[-500:]}")
        found = Measured(**json.loads(report.read_text(encoding="utf-8")), output=output)
        if found.wall > limit:
            raise RuntimeError(f"{Path(command[0]).name} took longer than {limit:g} seconds")
        return found


def _below(root: int) -> list[int]:
    """Every descendant of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{name}/stat").read_text(encoding="ascii", errors="replace")
                children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(name))
    found = []
    layer = children.get(root, [])
    while layer:
        found += layer
        layer = [child for pid in layer for child in children.get(pid, [])]
    return found


def _held(pid: int) -> int:
    """Bytes a process holds, pages that it shares counted in shares: forks of one process do not count twice."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii", errors="replace")
        return int(text.partition("\nPss:")[2].split()[0]) * 1024
    return 0


def _watch(report: Path, limit: float, command: list[str]) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    process = subprocess.Popen(command)
    peak = 0
    looked = 0.0
    wall = 0.0
    code = None
    while True:
        now = time.perf_counter()
        if now - began > (limit if code is None else wall + ORPHANS):
            for pid in _below(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if now - looked > LOOK:
            peak = max(peak, sum(_held(pid) for pid in _below(os.getpid())))
            looked = now
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == process.pid:
            wall = time.perf_counter() - began
            code = os.waitstatus_to_exitcode(status)
            process.returncode = code
        elif not pid:
            time.sleep(PAUSE)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {"wall": wall, "cpu": spent.ru_utime + spent.ru_stime, "peak": peak, "code": code}
    report.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(_watch(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
