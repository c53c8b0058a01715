"""Real GPUs in the sandbox: what a child needs of them, and how much memory it holds."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import select
import signal
import socket
import time
from typing import Any, Final

from gpudojo.sandbox import kernel

# Measured on an H200 with cuBLAS and cuDNN in use: 0.35 GB of the host and 0.85 GB of the device.
HOST_AROUND: Final = 1 << 30
DEVICE_AROUND: Final = 3 << 29
DEVICES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", *("/dev/nvidia[0-9]*",))
LIBRARIES: Final = ("/usr/local/nvidia", "/usr/local/cuda*", "/usr/share/nvidia", "/etc/nvidia")
READ: Final = ("/proc/driver/nvidia", "/proc/devices", "/proc/cpuinfo", "/proc/meminfo")
WRITTEN: Final = ("/proc/self",)  # CUDA writes something about its own process, and does not begin where it may not
NO_PROC: Final = "CUDA would need a /proc of its own there, which this machine does not let it have"
# What a nursery is told instead of CUDA_VISIBLE_DEVICES: it is itself to see none, as nothing that has begun to use
# CUDA can be forked.
VISIBLE: Final = "DOJO_VISIBLE_GPUS"
HIDDEN: Final = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def hidden() -> dict[str, str]:
    """The environment of a process in which torch finds no GPU, and does not touch CUDA to find that out."""
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    return HIDDEN if own is None else HIDDEN | {VISIBLE: own}


def shown(visible: str | None) -> None:
    """Let torch find in this process what the nursery hid from itself."""
    for name in HIDDEN:
        os.environ.pop(name, None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def devices() -> list[str]:
    return [path for pattern in DEVICES for path in glob.glob(pattern)]


def libraries() -> list[str]:
    """Where the driver's own libraries lie; they are opened when CUDA is used for the first time."""
    listed = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(folder)]
    found = [*listed, *(path for pattern in LIBRARIES for path in glob.glob(pattern))]
    return sorted({os.path.realpath(path) for path in found if os.path.isdir(path)})


def proc_of_its_own() -> bool:
    """Whether a process may have a process namespace with a /proc that fits; tried in one that then ends."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            root = os.getuid() == 0
            kernel.unshare(kernel.NEWPID | kernel.NEWNS | (0 if root else kernel.NEWUSER))
            first = os.fork()
            if first == 0:
                kernel.private_mounts()
                kernel.mount_processes()
                os._exit(0)
            _, status = os.waitpid(first, 0)
            code = os.waitstatus_to_exitcode(status)
        except OSError:
            pass
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


UNKNOWN: Final = (1 << 64) - 1
PROCESSES: Final = 1024
PATIENCE: Final = 20.0  # seconds for a first context
ANSWER: Final = 2.0


class _Holder(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Board:
    """The driver's own word. Raises OSError where there is none."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL("libnvidia-ml.so.1")
        self._ask("nvmlInit_v2")
        count = ctypes.c_uint()
        self._ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._gpus = [ctypes.c_void_p() for _ in range(count.value)]
        for index, gpu in enumerate(self._gpus):
            self._ask("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(gpu))

    def _ask(self, name: str, *args: Any) -> None:
        code = int(getattr(self._library, name)(*args))
        if code:
            raise OSError(f"{name} gives error {code}")

    def held(self) -> dict[int, int]:
        """Bytes by process, over all GPUs; a process whose bytes the driver does not tell is not among them."""
        found: dict[int, int] = {}
        for gpu in self._gpus:
            count, holders = ctypes.c_uint(PROCESSES), (_Holder * PROCESSES)()
            self._ask("nvmlDeviceGetComputeRunningProcesses_v3", gpu, ctypes.byref(count), holders)
            for holder in holders[: count.value]:
                if holder.used != UNKNOWN:
                    found[holder.pid] = found.get(holder.pid, 0) + holder.used
        return found

    def free(self) -> int:
        """Bytes of the first GPU that torch would use."""
        memory = _Memory()
        self._ask("nvmlDeviceGetMemoryInfo", self._first(), ctypes.byref(memory))
        return int(memory.free)

    def _first(self) -> ctypes.c_void_p:
        name = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
        if name.startswith(("GPU-", "MIG-")):
            gpu = ctypes.c_void_p()
            self._ask("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(gpu))
            return gpu
        if not name.isdigit() or int(name) >= len(self._gpus):
            raise OSError(f"there is no GPU {name!r}")
        return self._gpus[int(name)]


def room_for(each: int) -> int | None:
    """How many times so many bytes are free on the GPU; None where the driver does not tell."""
    try:
        return Board().free() // each
    except (OSError, AttributeError):
        return None


def context() -> str:
    """Begin to use the first GPU, as torch would; gives the reason where that fails."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no CUDA driver ({error})"
    device, made = ctypes.c_int(), ctypes.c_void_p()
    for name, args in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(made), device)),
    ):
        code = int(getattr(library, name)(*args))
        if code:
            return f"CUDA cannot be used: {name} gives error {code}"
    return ""


class DeviceScales:
    """The nursery's handle of the process that asks; `why` says why it cannot."""

    def __init__(self) -> None:
        """To be made before anything else: what is open here is open there as well."""
        self._end, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.why = "it has not answered yet"
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:  # nobody's child: the nursery takes its own children for submissions
                self._end.close()
                with contextlib.suppress(BaseException):
                    _serve(there)
            os._exit(0)
        os.waitpid(pid, 0)
        there.close()

    def ready(self) -> None:
        """Wait for its first answer: whether a process with a context was seen with it."""
        self.why = self._heard(PATIENCE + ANSWER).get("why", "the process that asks the driver is gone")

    def held(self) -> dict[int, int]:
        """Bytes by process, as /proc numbers them; nothing where that cannot be told."""
        if self.why:
            return {}
        with contextlib.suppress(OSError):
            self._end.send(b"?")
        return {int(pid): int(used) for pid, used in self._heard(ANSWER).get("held", {}).items()}

    def _heard(self, seconds: float) -> dict[str, Any]:
        if select.select([self._end], [], [], seconds)[0]:
            with contextlib.suppress(OSError, ValueError):
                said: dict[str, Any] = json.loads(self._end.recv(1 << 16))
                return said
        return {}


def _serve(end: socket.socket) -> None:
    """Answer until nobody asks any more."""
    os.closerange(3, end.fileno())
    os.closerange(end.fileno() + 1, 4096)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()
    shown(os.environ.get(VISIBLE))
    why, board = _tried()
    end.send(json.dumps({"why": why}).encode())
    while board is not None and end.recv(16):
        try:
            held = board.held()
        except OSError:
            held = {}
        end.send(json.dumps({"held": held}).encode())


def _tried() -> tuple[str, Board | None]:
    """A process that has a context must be seen with it, by its number here."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(told, (context() or "+").encode())
        time.sleep(PATIENCE)
        os._exit(0)
    try:
        said = os.read(ready, 1000).decode() if select.select([ready], [], [], PATIENCE)[0] else "CUDA does not begin"
        if said != "+":
            return said, None
        try:
            board = Board()
            seen = pid in board.held()
        except (OSError, AttributeError) as error:
            return f"the driver does not tell who holds what ({error})", None
        return ("", board) if seen else ("the driver does not tell by which process its memory is held", None)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)
