"""Importing a module of either package only defines: no operator, thread, backward pass or hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import atexit, importlib, os, pkgutil, sys, threading
import torch
import virtual_cuda, gpudojo
from torch.utils._python_dispatch import TorchDispatchMode

HOMES = tuple(os.path.dirname(package.__file__) + os.sep for package in (virtual_cuda, gpudojo))
effects = []


def is_ours(frame):
    return frame.f_code.co_filename.startswith(HOMES)


def watch(owner, name):
    original = getattr(owner, name)

    def watched(*args, **kwargs):
        if is_ours(sys._getframe(1)):
            effects.append(f"{module.name}: {name}")
        return original(*args, **kwargs)

    setattr(owner, name, watched)


def refuse(owner, name):
    def refused(*args, **kwargs):
        effects.append(f"{module.name}: {name}")
        raise RuntimeError(f"{name} at import")

    setattr(owner, name, refused)


class NoOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        effects.append(f"{module.name}: {func}")
        return func(*args, **(kwargs or {}))


watch(atexit, "register")
watch(os, "register_at_fork")
refuse(threading.Thread, "start")
refuse(torch.autograd, "backward")
refuse(torch.autograd, "grad")
refuse(torch.autograd.graph, "_engine_run_backward")
with NoOperators():
    for package in (virtual_cuda, gpudojo):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if module.name.rpartition(".")[2] != "__main__":
                importlib.import_module(module.name)
if torch.cuda.is_initialized():
    effects.append("CUDA was initialised")
print(*effects, sep="\\n")
"""


def test_importing_every_module_has_no_effect() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
