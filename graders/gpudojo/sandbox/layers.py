"""The layers of isolation: their names, what each is for, and which of them hold here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import gpudojo

PROCESSES: Final = "processes"
NETWORK: Final = "network"
SCRATCH: Final = "scratch"
TREE: Final = "file system"
FILES: Final = "files"
SIGNALS: Final = "signals"
CALLS: Final = "system calls"
USER: Final = "user"
LIMITS: Final = "limits"
DEVICE: Final = "device memory"

PURPOSE: Final[dict[str, str]] = {
    PROCESSES: "a process namespace: everything a submission starts ends with it",
    NETWORK: "a network namespace with only its own loopback",
    SCRATCH: "a private scratch folder in memory, with a size limit",
    TREE: "a file system of its own: Python, the installed packages and scratch; "
    "nothing else can be named",
    FILES: "Landlock: reads Python and the installed packages, writes scratch, and nothing else",
    SIGNALS: "Landlock: no signals to the grader or to other submissions",
    CALLS: "seccomp: no tracing, mounting, kernel keys, other processes' memory, "
    "memory of no process, other sockets",
    USER: "a separate user, or a user namespace of its own, without privileges",
    LIMITS: "limits on memory, CPU time, processes, files and output",
    DEVICE: "memory of the GPU: a limit within torch, "
    "and what the driver reports for every process",
}
_ALLOW_NAMESPACES: Final = (
    "allow user namespaces, or grade as root or in a container with --privileged"
)
ADVICE: Final[dict[str, str]] = {
    PROCESSES: _ALLOW_NAMESPACES,
    NETWORK: _ALLOW_NAMESPACES,
    SCRATCH: _ALLOW_NAMESPACES,
    TREE: f"use Linux 5.12 or newer; {_ALLOW_NAMESPACES}",
    FILES: "use Linux 5.13 or newer, and: pip install py-landlock",
    SIGNALS: "use Linux 6.12 or newer, and: pip install py-landlock",
    CALLS: "pip install pyseccomp, and your system's libseccomp (Debian: apt install libseccomp2)",
    USER: "use Linux 5.14 or newer and allow user namespaces; "
    "or grade as root: each submission is then another user",
    DEVICE: "grade where the driver (NVML) reports the memory of each process, "
    "or one submission at a time",
}
EXAMINING_SECONDS: Final = 20.0

# Why a layer does not hold, by its name; an empty text if it holds.
Layers = dict[str, str]


def missing_layers(layers: Layers) -> list[str]:
    """The layers that do not hold, each with its reason."""
    return [f"{name}: {why}" for name, why in layers.items() if why]


def describe_layers(layers: Layers) -> str:
    """All layers in one line: those that hold, then those that are missing."""
    holding = ", ".join(name for name, why in layers.items() if not why) or "none"
    missing = "; ".join(missing_layers(layers))
    if not missing:
        return f"isolation: {holding}"
    return f"isolation: {holding}; MISSING: {missing}"


def examine_layers() -> Layers:
    """Find out which layers hold on this machine, by trying them in a separate process.

    Each has the reason why it does not hold, or "". Raises subprocess.TimeoutExpired after
    EXAMINING_SECONDS, and OSError if the process cannot be started.
    """
    everywhere = [name for name in PURPOSE if name != DEVICE]  # DEVICE: only if there is a GPU
    if not hasattr(os, "fork"):
        return dict.fromkeys(everywhere, "this system cannot fork")
    source_root = str(Path(gpudojo.__file__).resolve().parents[1])
    script = (
        f"import sys; sys.path.append({source_root!r})\n"
        "from gpudojo.sandbox.isolation import print_layers; print_layers()"
    )
    # -P: nothing is imported from the current folder, which may be a student's checkout
    command = [sys.executable, "-P", "-c", script]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=EXAMINING_SECONDS, check=False
    )
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            layers: Layers = json.loads(line)
            return layers
    error_lines = run.stderr.strip().splitlines() or ["no output"]
    return dict.fromkeys(everywhere, f"it could not be tried: {error_lines[-1]}")
