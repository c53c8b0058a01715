"""What tests share to save time: results made once for all workers, and Python processes that have
torch loaded.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import pytest
from filelock import FileLock

Made = TypeVar("Made")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    """What `make` returns, given an empty folder.

    The first of xdist's workers makes it and the others read it.

    The result is pickled; the folder stays where it is until pytest removes the run's temporary
    files.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    result = shared / f"{name}.pickle"
    with FileLock(shared / f"{name}.lock"):
        if not result.is_file():
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=shared))
            result.write_bytes(pickle.dumps(make(folder)))
        return pickle.loads(result.read_bytes())  # type: ignore[no-any-return]


# One request a line. The child leaves the loop and runs the module as `python -m` does, so that it
# also ends like one.
_SERVER = """
import importlib, io, json, os, runpy, signal, sys, warnings
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
# A shell's background jobs, and what they start, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
replies.close()
for fd, mode in enumerate(("in", "out", "err")):
    opened = os.open(asked[mode], os.O_RDWR)
    os.dup2(opened, fd)
    os.close(opened)
    kind = "w" if fd else "r"
    encoding = asked["env"].get("PYTHONIOENCODING", "utf-8")
    errors = "strict" if fd < 2 else "backslashreplace"
    setattr(sys, "std" + mode, open(fd, kind, encoding=encoding, errors=errors, closefd=False))
os.environ.clear()
os.environ.update(asked["env"])
for option in filter(None, asked["env"].get("PYTHONWARNINGS", "").split(",")):
    warnings._setoption(option)
os.chdir(asked["cwd"])
folders = asked["env"].get("PYTHONPATH", "").split(os.pathsep)
sys.path[:] = [asked["cwd"], *filter(None, folders), *base]
sys.argv[:] = [asked["module"], *asked["argv"]]
if asked["module"].endswith(".py"):
    sys.path[0] = os.path.dirname(asked["module"])
    runpy.run_path(asked["module"], run_name="__main__")
else:
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
"""


class WarmPython:
    """Runs `python -m MODULE ARGUMENTS…`, or a script, in a fork of a process that has torch
    loaded.

    Nothing of gpudojo is loaded there: it is like a fresh process whose `import torch`, half of a
    short run, is done.
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
            command = [
                *self.command[:-2],
                *([] if module.endswith(".py") else ["-m"]),
                module,
                *arguments,
            ]
            return subprocess.run(
                command, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, timeout=300
            )
        if self.server is None:
            pipe = subprocess.PIPE
            clean = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PYTHON", "PYTEST"))
            }
            self.server = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, env=clean, cwd="/", text=True
            )
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
            said = [
                files[name].read_bytes().decode(errors="replace").replace("\r\n", "\n")
                for name in ("out", "err")
            ]
        return subprocess.CompletedProcess([module, *arguments], status, *said)

    def close(self) -> None:
        if self.server is not None:
            self.server.communicate()
            self.server = None


# A request holds the code and the arguments of a fork server's start, and brings its control socket
# and its output.
_LOADED = """
import json, os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
from gpudojo.sandbox.warm_up import warm_up
warm_up()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
requests = socket.socket(fileno=int(sys.argv[2]))
while True:
    data, fds, _, _ = socket.recv_fds(requests, 1 << 20, 2)
    if not data:
        os._exit(0)
    pid = os.fork()
    if not pid:
        break
    for fd in fds:
        os.close(fd)
    requests.send(str(pid).encode())
requests.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
os.setsid()
asked = json.loads(data)
os.environ.clear()
os.environ.update(asked["env"])
for target in (1, 2):
    os.dup2(fds[1], target)
sys.argv[1:] = [asked["path"], str(fds[0])]
exec(asked["code"])
"""


class LoadedForkServers:
    """Stands in for `subprocess` in the fork client: its fork servers are forks of one that has
    loaded everything.
    """

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self.requests: socket.socket | None = None

    def Popen(
        self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **more: Any
    ) -> Any:
        *_, code, path, control = command
        assert command[1:3] == ["-P", "-c"]
        if self.requests is None:
            self.requests, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            started = [sys.executable, "-P", "-c", _LOADED, path, str(there.fileno())]
            self.process = subprocess.Popen(started, env=env, cwd="/", pass_fds=[there.fileno()])
            there.close()
        asked = json.dumps({"code": code, "path": path, "env": env}).encode()
        socket.send_fds(self.requests, [asked], [int(control), stdout.fileno()])
        return ForkedServer(int(self.requests.recv(32)))

    def close(self) -> None:
        if self.requests is not None:
            self.requests.close()
            self.process.wait()


class ForkedServer:
    """What the fork client needs of a `Popen`, of a process that is a child of another one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, timeout: float = 60) -> None:
        end = time.monotonic() + timeout
        while Path(f"/proc/{self.pid}").exists():
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("fork server", timeout)
            time.sleep(0.005)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
