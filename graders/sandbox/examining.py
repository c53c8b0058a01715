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
from graders.sandbox.layers import DEVICE, PURPOSE, Layers

SECONDS: Final = 20.0
ADVICE: Final[dict[str, str]] = {
    "processes": "allow user namespaces, or grade as root or in a container with --privileged",
    "network": "allow user namespaces, or grade as root or in a container with --privileged",
    "scratch": "allow user namespaces, or grade as root or in a container with --privileged",
    "files": "use Linux 5.13 or newer, and: pip install py-landlock",
    "signals": "use Linux 6.12 or newer, and: pip install py-landlock",
    "system calls": "pip install pyseccomp, and your system's libseccomp (Debian: apt install libseccomp2)",
    "user": "grade as root: submissions then run as a user of their own",
    "device memory": "grade where the driver (NVML) tells what each process holds, or one submission at a time",
}


def examine() -> Layers:
    """The layers, each with the reason why it does not hold, or an empty text."""
    everywhere = [name for name in PURPOSE if name != DEVICE]  # which is asked for only where there is one
    if not hasattr(os, "fork"):
        return dict.fromkeys(everywhere, "this system cannot fork")
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
    return dict.fromkeys(everywhere, f"it could not be tried out: {last}")


def _report() -> None:
    from graders.sandbox import devices, gpu
    from graders.sandbox.confinement import Fences
    from graders.sandbox.nursery import own_namespaces

    linux = sys.platform == "linux"
    with_gpu = linux and bool(gpu.devices())
    scales = devices.DeviceScales() if with_gpu else None
    processes = not with_gpu or gpu.proc_of_its_own()
    if linux:
        own_namespaces(processes)
    with tempfile.TemporaryDirectory(prefix="dojo-") as scratch:
        os.chmod(scratch, 0o711)
        fences = Fences(scratch, with_gpu, processes)
        fences.prepare()
        if scales is not None:
            scales.ready()
            fences.layers[DEVICE] = scales.why
        fences.before_fork()
        pid = os.fork()
        if pid == 0:
            layers = fences.confine(1, 1 << 30, 1 << 20, 10, {}, with_gpu)
            if with_gpu:
                layers[DEVICE] = layers[DEVICE] or devices.context()
            print(json.dumps(layers), flush=True)
            os._exit(0)
        fences.after_fork()
        os.waitpid(pid, 0)
