"""What a command costs: its time, and processor time and peak memory of it and all it starts.

A process stands between: it starts the command, adopts whatever the command leaves behind, so that
no child's processor time is lost, and looks at the memory of the whole tree four times a second.
Linux only.
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

from benchmarks.commands import ROOT, start_command
from benchmarks.processes import depths_below

POLL_SECONDS = 0.01
SECONDS_BETWEEN_LOOKS = 0.25  # at the memory
ORPHAN_SECONDS = 10.0  # for what the command leaves behind
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
# Without site-packages and the caller's variables, which are the command's and may hide ours.
BETWEEN = "import sys; sys.path.insert(0, sys.argv[1]); from benchmarks import measuring; "
BETWEEN += "measuring.run_and_report(*sys.argv[2:])"


@dataclass(frozen=True)
class Measured:
    """Seconds, seconds of all processors together, and bytes; exit code and what was printed."""

    wall: float
    cpu: float
    peak: int
    code: int
    output: str = ""


def measure_command(
    command: list[str], cwd: Path, environment: dict[str, str], limit: float = 600.0
) -> Measured:
    """Run a command to its end.

    After `limit` seconds it is ended with all that it has started. Raises RuntimeError then, and
    for a command that cannot be started.
    """
    between = [sys.executable, "-S", "-E", "-c", BETWEEN, str(ROOT)]
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        process = start_command([*between, str(report), str(limit), *command], cwd, environment)
        output, _ = process.communicate()
        if not report.exists():
            raise RuntimeError(f"{command[0]} could not be started: {output[-500:]}")
        figures = json.loads(report.read_text(encoding="utf-8"))
    if figures["wall"] > limit:
        raise RuntimeError(f"{Path(command[0]).name} took longer than {limit:g} seconds")
    return Measured(**figures, output=output)


# ---- the process between -------------------------------------------------------------------------


def _memory_of(process: int) -> int:
    """Bytes that a process holds; 0 if it has ended meanwhile.

    Pages that it shares are counted in shares: forks of one process do not count twice.
    """
    try:
        path = Path(f"/proc/{process}/smaps_rollup")
        text = path.read_text(encoding="ascii", errors="replace")
        _, _, rest = text.partition("\nPss:")
        return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 0


def _end_descendants() -> None:
    for process in depths_below(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.kill(process, signal.SIGKILL)


def run_and_report(report: str, limit: str, *command: str) -> None:
    """Run a command, wait for all that it starts, and write the figures to `report`."""
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    process = subprocess.Popen(command)
    peak = 0
    last_look = 0.0
    wall = 0.0
    code = None
    while True:
        now = time.perf_counter()
        if code is None:
            allowed = float(limit)
        else:
            allowed = wall + ORPHAN_SECONDS
        if now - began > allowed:
            _end_descendants()
        if now - last_look > SECONDS_BETWEEN_LOOKS:
            memory = sum(_memory_of(each) for each in depths_below(os.getpid()))
            peak = max(peak, memory)
            last_look = now
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # nothing is left
            break
        if ended == process.pid:
            wall = time.perf_counter() - began
            code = os.waitstatus_to_exitcode(status)
            process.returncode = code
        elif not ended:
            time.sleep(POLL_SECONDS)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = spent.ru_utime + spent.ru_stime
    figures = {"wall": wall, "cpu": cpu, "peak": peak, "code": code}
    Path(report).write_text(json.dumps(figures), encoding="utf-8")
