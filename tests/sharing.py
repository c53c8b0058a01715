"""What tests share to save time: results made once for all workers, and Python processes that have torch loaded."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

Made = TypeVar("Made")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    """What `make` returns, given an empty folder; the first of xdist's workers makes it and the others read it.

    The result is pickled; the folder stays where it is until pytest removes the run's temporary files.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    result = shared / f"{name}.pickle"
    with FileLock(shared / f"{name}.lock"):
        if not result.is_file():
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=shared))
            result.write_bytes(pickle.dumps(make(folder)))
        return pickle.loads(result.read_bytes())  # type: ignore[no-any-return]


# One request a line. The child leaves the loop and runs the module as `python -m` does, so that it also ends like one.
_SERVER = """
import importlib, io, json, os, runpy, sys
for name in ("torch", "numpy", "pytest", "msgspec", "nbformat", "rich.console", "click", "jinja2"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
base = list(filter(None, sys.path))
requests, replies = os.fdopen(0, "r"), os.fdopen(os.dup(1), "w")
for line in iter(requests.readline, ""):
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    print(pid, file=replies, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=replies, flush=True)
else:
    os._exit(0)
os.setsid()
replies.close()
for fd, mode in enumerate(("in", "out", "err")):
    opened = os.open(asked[mode], os.O_RDWR)
    os.dup2(opened, fd)
    os.close(opened)
    kind = "w" if fd else "r"
    encoding = asked["env"].get("PYTHONIOENCODING", "utf-8")
    setattr(sys, "std" + mode, open(fd, kind, encoding=encoding, errors="strict" if fd < 2 else "backslashreplace"))
os.environ.clear()
os.environ.update(asked["env"])
os.chdir(asked["cwd"])
sys.path[:] = [asked["cwd"], *filter(None, asked["env"].get("PYTHONPATH", "").split(os.pathsep)), *base]
sys.argv[:] = [asked["module"], *asked["argv"]]
if asked["module"].endswith(".py"):
    sys.path[0] = os.path.dirname(asked["module"])
    runpy.run_path(asked["module"], run_name="__main__")
else:
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
"""


class WarmPython:
    """Runs `python -m MODULE ARGUMENTS…`, or a script, in a fork of a process that has torch loaded.

    Nothing of gpudojo is loaded there: it is like a fresh process whose `import torch`, half of a short run, is done.
    """

    def __init__(self, python: str | Path = sys.executable, *options: str) -> None:
        self.command = [str(python), *options, "-c", _SERVER]
        self.server: subprocess.Popen[str] | None = None

    def run(
        self,
        module: str,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        if not hasattr(os, "fork"):
            command = [*self.command[:-2], *([] if module.endswith(".py") else ["-m"]), module, *arguments]
            return subprocess.run(command, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, timeout=300)
        if self.server is None:
            pipe = subprocess.PIPE
            clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
            self.server = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, env=clean, cwd="/", text=True)
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / name for name in ("in", "out", "err")}
            for path in files.values():
                path.write_text(stdin if path.name == "in" else "", encoding="utf-8")
            asked = {"module": module, "argv": arguments, "cwd": str(cwd), "env": dict(env)}
            request = json.dumps(asked | {name: str(path) for name, path in files.items()})
            print(request, file=self.server.stdin, flush=True)
            child = int(self.server.stdout.readline())
            try:
                status = int(self.server.stdout.readline())
            except BaseException:  # a time-out of the test, or Ctrl-C
                os.killpg(child, signal.SIGKILL)
                self.server.kill()
                raise
            said = [files[name].read_bytes().decode(errors="replace").replace("\r\n", "\n") for name in ("out", "err")]
        return subprocess.CompletedProcess([module, *arguments], status, *said)

    def close(self) -> None:
        if self.server is not None:
            self.server.communicate()
            self.server = None
