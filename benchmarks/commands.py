"""Commands that benchmarks run: `dojo`, and any other with its output and its times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


def dojo_command(*words: object) -> list[str]:
    """The words of a `dojo` command, run by this Python."""
    return [sys.executable, "-m", "gpudojo", *map(str, words)]


def grade_command(folder: Path, out: Path, seed: str, *words: object) -> list[str]:
    """The words of `dojo grade` for a folder of submissions."""
    return dojo_command("grade", folder, "--out", out, "--seed", seed, *words)


def start_dojo(*words: object) -> subprocess.Popen[bytes]:
    """Start a `dojo` command in the repository's folder; what it prints is dropped."""
    return subprocess.Popen(dojo_command(*words), cwd=ROOT, stdout=subprocess.DEVNULL)


def start_command(
    command: list[str], folder: Path, environment: dict[str, str], own_session: bool = False
) -> subprocess.Popen[str]:
    """Start a command that reads nothing; what it prints and complains of comes as one text.

    With `own_session` it can be killed with all that it has started.
    """
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=own_session,
    )


class TimedRun(NamedTuple):
    """A command that has ended: what it took, its exit code and what it printed."""

    wall: float  # seconds on the clock
    cpu: float  # seconds of processors; 0 where the system does not tell
    code: int
    output: str


def run_and_time(command: list[str], folder: Path, environment: dict[str, str]) -> TimedRun:
    """Run a command to its end."""
    cpu_before = _processor_seconds_of_children()
    began = time.perf_counter()
    process = start_command(command, folder, environment)
    output, _ = process.communicate()
    wall = time.perf_counter() - began
    cpu = _processor_seconds_of_children() - cpu_before
    return TimedRun(wall, cpu, process.returncode, output)


def _processor_seconds_of_children() -> float:
    """Seconds of processors that ended children have used; 0 where the system does not tell."""
    times = os.times()
    return times.children_user + times.children_system
