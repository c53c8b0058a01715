"""The command `dojo`, as benchmarks type it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
