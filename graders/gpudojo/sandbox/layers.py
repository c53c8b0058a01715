"""The layers of isolation around a child: their names, what each is for, and which of them hold on this machine."""

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
    TREE: "a file system of its own: Python, the installed packages and scratch; nothing else can be named",
    FILES: "Landlock: reads Python and the installed packages, writes scratch, and nothing else",
    SIGNALS: "Landlock: no signals to the grader or to other submissions",
    CALLS: "seccomp: no tracing, mounting, kernel keys, other processes' memory, memory of no process, other sockets",
    USER: "a separate user, or a user namespace of its own, without privileges",
    LIMITS: "limits on memory, CPU time, processes, files and output",
    DEVICE: "memory of the GPU: a limit within torch, and what the driver reports for every process",
}
_NAMESPACES: Final = "allow user namespaces, or grade as root or in a container with --privileged"
ADVICE: Final[dict[str, str]] = {
    **dict.fromkeys((PROCESSES, NETWORK, SCRATCH), _NAMESPACES),
    TREE: f"use Linux 5.12 or newer; {_NAMESPACES}",
    FILES: "use Linux 5.13 or newer, and: pip install py-landlock",
    SIGNALS: "use Linux 6.12 or newer, and: pip install py-landlock",
    CALLS: "pip install pyseccomp, and your system's libseccomp (Debian: apt install libseccomp2)",
    USER: "use Linux 5.14 or newer and allow user namespaces; or grade as root: each submission is then another user",
    DEVICE: "grade where the driver (NVML) reports the memory of each process, or one submission at a time",
}
SECONDS: Final = 20.0

# By name, why a layer does not hold; an empty text where it does.
Layers = dict[str, str]


def missing(layers: Layers) -> list[str]:
    """The layers that do not hold, each with its reason."""
    return [f"{name}: {why}" for name, why in layers.items() if why]


def sentence(layers: Layers) -> str:
    """All layers in one line."""
    held = ", ".join(name for name, why in layers.items() if not why) or "none"
    lacking = "; ".join(missing(layers))
    return f"isolation: {held}; MISSING: {lacking}" if lacking else f"isolation: {held}"


def examine() -> Layers:
    """The layers of this machine; tried in a separate process."""
    everywhere = [name for name in PURPOSE if name != DEVICE]  # only where there is a GPU
    if not hasattr(os, "fork"):
        return dict.fromkeys(everywhere, "this system cannot fork")
    folder = str(Path(gpudojo.__file__).resolve().parents[1])
    # -P: nothing is imported from the current folder, which may be a student's checkout
    command = f"import sys; sys.path.append({folder!r})\nfrom gpudojo.sandbox.isolation import report; report()"
    words = [sys.executable, "-P", "-c", command]
    run = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            found: Layers = json.loads(line)
            return found
    last = (run.stderr.strip().splitlines() or ["no output"])[-1]
    return dict.fromkeys(everywhere, f"it could not be tried: {last}")
