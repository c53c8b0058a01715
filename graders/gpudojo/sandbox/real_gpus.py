"""Real GPUs in the sandbox: what a child needs of them, and how much memory each process holds."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Final

# Measured on an H200 with cuBLAS and cuDNN in use: 0.35 GB of the host and 0.85 GB of the device.
CUDA_HOST_BYTES: Final = 1 << 30
CUDA_DEVICE_BYTES: Final = 3 << 29
DEVICES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia[0-9]*")
LIBRARIES: Final = ("/usr/local/nvidia", "/usr/local/cuda*", "/usr/share/nvidia", "/etc/nvidia")
READ: Final = ("/proc/driver/nvidia", "/proc/devices", "/proc/cpuinfo", "/proc/meminfo")
WRITTEN: Final = (
    "/proc/self",
)  # CUDA does not start where it cannot write to its own process's entry
NO_PROC: Final = "CUDA would need its own /proc there, which this machine does not allow"
# Set for the fork server in place of CUDA_VISIBLE_DEVICES. The fork server itself must see no GPU: a process that has
# started to use CUDA cannot be forked.
VISIBLE: Final = "DOJO_VISIBLE_GPUS"
HIDDEN: Final = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
CONTEXT_SECONDS: Final = 20.0  # for a first CUDA context
ANSWER_SECONDS: Final = 2.0


def hidden() -> dict[str, str]:
    """The environment of a process in which torch finds no GPU, and does not touch CUDA to find that out."""
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    return HIDDEN if own is None else HIDDEN | {VISIBLE: own}


def show(visible: str | None) -> None:
    """Let torch find the GPUs in this process that `hidden` hid from the fork server."""
    for name in HIDDEN:
        os.environ.pop(name, None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def devices() -> list[str]:
    """The device files of NVIDIA GPUs on this machine."""
    return [path for pattern in DEVICES for path in glob.glob(pattern)]


def libraries() -> list[str]:
    """Where the driver's own libraries are; they are opened when CUDA is first used."""
    listed = filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    found = [*listed, *(path for pattern in LIBRARIES for path in glob.glob(pattern))]
    return sorted({os.path.realpath(path) for path in found if os.path.isdir(path)})


class Nvml:
    """Memory of GPUs as the driver reports it. Raises OSError where there is no driver, or it does not answer."""

    def __init__(self) -> None:
        try:
            import pynvml  # type: ignore[import-untyped]  # here: only a machine with a driver needs it
        except ImportError as error:
            raise OSError(f"nvidia-ml-py is not installed ({error})") from None
        self._nvml: Any = pynvml
        self._ask("nvmlInit")
        self._gpus = [
            self._ask("nvmlDeviceGetHandleByIndex", n)
            for n in range(self._ask("nvmlDeviceGetCount"))
        ]

    def _ask(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*args)
        except self._nvml.NVMLError as error:
            raise OSError(f"{name}: {error}") from None

    def held(self) -> dict[int, int]:
        """Bytes by process, over all GPUs; without processes whose bytes the driver does not report."""
        found: dict[int, int] = {}
        for gpu in self._gpus:
            for process in self._ask("nvmlDeviceGetComputeRunningProcesses", gpu):
                if process.usedGpuMemory is not None:
                    found[process.pid] = found.get(process.pid, 0) + int(process.usedGpuMemory)
        return found

    def free(self) -> int:
        """Free bytes of the first GPU that torch would use."""
        name = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
        if name.startswith(("GPU-", "MIG-")):
            gpu = self._ask("nvmlDeviceGetHandleByUUID", name)
        elif name.isdigit() and int(name) < len(self._gpus):
            gpu = self._gpus[int(name)]
        else:
            raise OSError(f"there is no GPU {name!r}")
        return int(self._ask("nvmlDeviceGetMemoryInfo", gpu).free)


def room_for(each: int) -> int | None:
    """How many times that many bytes are free on the GPU; None where the driver does not report it."""
    try:
        return Nvml().free() // each
    except OSError:
        return None


def context() -> str:
    """Start to use the first GPU, as torch would. Returns the reason where that fails, else an empty text."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no CUDA driver ({error})"
    device = ctypes.c_int()
    made = ctypes.c_void_p()
    for name, args in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(made), device)),
    ):
        code = int(getattr(library, name)(*args))
        if code:
            return f"CUDA cannot be used: {name} returns error {code}"
    return ""


class GpuMemoryWatch:
    """Asks the driver how much memory each process holds; `why` is the reason where that does not work.

    NVML is used in a helper process: the fork server must not load the driver.
    """

    _end: socket.socket
    why: str

    def __init__(self) -> None:
        """To be made first of all: the helper inherits every open descriptor."""
        if sys.platform == "win32":
            raise NotImplementedError
        self._end, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.why = "it has not answered yet"
        pid = os.fork()
        if pid == 0:
            if (
                os.fork() == 0
            ):  # not a child of the fork server, which takes its children for submissions
                self._end.close()
                with contextlib.suppress(BaseException):
                    _serve(there)
            os._exit(0)
        os.waitpid(pid, 0)
        there.close()

    def wait_ready(self) -> None:
        """Wait for its first answer: whether the driver reports the memory of a process with a context."""
        self.why = self._receive(CONTEXT_SECONDS + ANSWER_SECONDS).get(
            "why", "the process that asks the driver ended"
        )

    def held(self) -> dict[int, int]:
        """Bytes by process number as in /proc; empty where the driver does not report it."""
        if self.why:
            return {}
        with contextlib.suppress(OSError):
            self._end.send(b"?")
        return {
            int(pid): int(used)
            for pid, used in self._receive(ANSWER_SECONDS).get("held", {}).items()
        }

    def _receive(self, seconds: float) -> dict[str, Any]:
        if select.select([self._end], [], [], seconds)[0]:
            with contextlib.suppress(OSError, ValueError):
                answer: dict[str, Any] = json.loads(self._end.recv(1 << 16))
                return answer
        return {}


def _serve(end: socket.socket) -> None:
    """Answer until the fork server is gone."""
    if sys.platform == "win32":
        raise NotImplementedError
    os.closerange(3, end.fileno())
    os.closerange(end.fileno() + 1, 4096)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()
    show(os.environ.get(VISIBLE))
    why, nvml = _tried()
    end.send(json.dumps({"why": why}).encode())
    while nvml is not None and end.recv(16):
        try:
            held = nvml.held()
        except OSError:
            held = {}
        end.send(json.dumps({"held": held}).encode())


def _tried() -> tuple[str, Nvml | None]:
    """NVML, if it reports the memory of a process that has a context, by its process number here; else the reason."""
    if sys.platform == "win32":
        raise NotImplementedError
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(told, (context() or "+").encode())
        time.sleep(CONTEXT_SECONDS)
        os._exit(0)
    try:
        waited = select.select([ready], [], [], CONTEXT_SECONDS)[0]
        said = os.read(ready, 1000).decode() if waited else "CUDA does not start"
        if said != "+":
            return said, None
        nvml = Nvml()
        reported = pid in nvml.held()
        return (
            ("", nvml)
            if reported
            else ("the driver does not report which process holds its memory", None)
        )
    except OSError as error:
        return f"the driver does not report who holds how much ({error})", None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)
