"""Which layers of isolation does this machine have? A child is fenced in as for grading, and tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import graders
from graders.sandbox.layers import PURPOSE, Layers

SECONDS: Final = 20.0
ADVICE: Final[dict[str, str]] = {
    "processes": "allow user namespaces, or grade as root or in a container with --privileged",
    "network": "allow user namespaces, or grade as root or in a container with --privileged",
    "scratch": "allow user namespaces, or grade as root or in a container with --privileged",
    "files": "use Linux 5.13 or newer, and: pip install py-landlock",
    "signals": "use Linux 6.12 or newer, and: pip install py-landlock",
    "system calls": "pip install pyseccomp, and your system's libseccomp (Debian: apt install libseccomp2)",
    "user": "grade as root: submissions then run as a user of their own",
}


def examine() -> Layers:
    """The layers, each with the reason why it does not hold, or an empty text."""
    if not hasattr(os, "fork"):
        return dict.fromkeys(PURPOSE, "this system cannot fork")
    folder = str(Path(graders.__file__).resolve().parents[1])
    # -P: what lies where the command was typed, a student's checkout perhaps, is not to be imported
    command = f"import sys; sys.path.append({folder!r})\nfrom {__name__} import _report; _report()"
    run = subprocess.run(
        [sys.executable, "-P", "-c", command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            found: Layers = json.loads(line)
            return found
    last = (run.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return dict.fromkeys(PURPOSE, f"it could not be tried out: {last}")


def _report() -> None:
    from graders.sandbox.confinement import Fences
    from graders.sandbox.nursery import own_namespaces

    if sys.platform == "linux":
        own_namespaces()
    with tempfile.TemporaryDirectory(prefix="dojo-") as scratch:
        os.chmod(scratch, 0o711)
        fences = Fences(scratch)
        fences.prepare()
        fences.before_fork()
        pid = os.fork()
        if pid == 0:
            print(json.dumps(fences.confine(1, 1 << 30, 1 << 20, 10, {})), flush=True)
            os._exit(0)
        fences.after_fork()
        os.waitpid(pid, 0)
