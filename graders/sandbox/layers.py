"""Which fences are there? Their names, and what each one is for; `confine` in `confinement` puts them up."""

from __future__ import annotations

from typing import Final

PROCESSES: Final = "processes"
NETWORK: Final = "network"
SCRATCH: Final = "scratch"
FILES: Final = "files"
SIGNALS: Final = "signals"
CALLS: Final = "system calls"
USER: Final = "user"
LIMITS: Final = "limits"
DEVICE: Final = "device memory"

PURPOSE: Final[dict[str, str]] = {
    PROCESSES: "a process namespace: whatever a submission starts ends with it",
    NETWORK: "a network namespace with nothing but its own loopback",
    SCRATCH: "a private scratch folder in memory, with a size limit",
    FILES: "Landlock: reads Python and the installed packages, writes scratch, and nothing else",
    SIGNALS: "Landlock: no signals to the grader or to other submissions",
    CALLS: "seccomp: no tracing, mounting, kernel keys or other processes' memory",
    USER: "a user of its own without privileges",
    LIMITS: "limits on memory, processor time, processes, files and output",
    DEVICE: "memory of the GPU: a limit within torch, and every process weighed by the driver's own account",
}

# A name and why the layer does not hold; an empty text where it does.
Layers = dict[str, str]


def missing(layers: Layers) -> list[str]:
    """The layers that do not hold, each with its reason."""
    return [f"{name}: {why}" for name, why in layers.items() if why]


def sentence(layers: Layers) -> str:
    """All layers in a line."""
    held = [name for name, why in layers.items() if not why]
    said = f"isolation: {', '.join(held) or 'none'}"
    lacking = missing(layers)
    return f"{said}; NOT held: {'; '.join(lacking)}" if lacking else said
