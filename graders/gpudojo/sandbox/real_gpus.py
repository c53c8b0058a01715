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
import traceback
from typing import Any, Final, NamedTuple

# Measured on an H200 with cuBLAS and cuDNN in use: 0.35 GB of the host and 0.85 GB of the device.
CUDA_HOST_BYTES: Final = 1 << 30
CUDA_DEVICE_BYTES: Final = 3 << 29
DEVICES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia[0-9]*")
LIBRARIES: Final = ("/usr/local/nvidia", "/usr/local/cuda*", "/usr/share/nvidia", "/etc/nvidia")
READ: Final = ("/proc/driver/nvidia", "/proc/devices", "/proc/cpuinfo", "/proc/meminfo")
# CUDA does not start where it cannot write to its own process's entry.
WRITTEN: Final = ("/proc/self",)
NO_PROC: Final = "CUDA would need its own /proc there, which this machine does not allow"
# Set for the fork server in place of CUDA_VISIBLE_DEVICES. The fork server itself must see no GPU:
# a process that has started to use CUDA cannot be forked.
VISIBLE: Final = "DOJO_VISIBLE_GPUS"
HIDDEN: Final = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
CONTEXT_SECONDS: Final = 20.0  # for a first CUDA context
ANSWER_SECONDS: Final = 2.0


def variables_that_hide_gpus() -> dict[str, str]:
    """Environment variables for a process in which torch is to find no GPU.

    With them torch does not touch CUDA to find that out. What was visible is kept in VISIBLE.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return HIDDEN
    return HIDDEN | {VISIBLE: visible}


def show_gpus(visible: str | None) -> None:
    """Let torch find GPUs in this process again. `visible` is the value that VISIBLE had."""
    for name in HIDDEN:
        os.environ.pop(name, None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def device_files() -> list[str]:
    """The device files of NVIDIA GPUs on this machine."""
    return [path for pattern in DEVICES for path in glob.glob(pattern)]


def library_folders() -> list[str]:
    """The folders of the driver's own libraries, sorted.

    They are opened when CUDA is first used.
    """
    candidates = list(filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    for pattern in LIBRARIES:
        candidates += glob.glob(pattern)
    return sorted({os.path.realpath(path) for path in candidates if os.path.isdir(path)})


class Nvml:
    """Memory of GPUs as the driver reports it.

    Its methods raise OSError if there is no driver, or if it does not answer.
    """

    def __init__(self) -> None:
        """Open the driver's library and find the GPUs.

        Raises OSError where nvidia-ml-py or the driver is missing.
        """
        try:
            # Here: only a machine with a driver needs it.
            import pynvml  # type: ignore[import-untyped]
        except ImportError as error:
            raise OSError(f"nvidia-ml-py is not installed ({error})") from None
        self._nvml: Any = pynvml
        self._call_nvml("nvmlInit")
        self._gpus = []
        for number in range(self._call_nvml("nvmlDeviceGetCount")):
            self._gpus.append(self._call_nvml("nvmlDeviceGetHandleByIndex", number))

    def _call_nvml(self, name: str, *args: Any) -> Any:
        """Call a function of NVML by name. Raises OSError if it fails."""
        try:
            return getattr(self._nvml, name)(*args)
        except self._nvml.NVMLError as error:
            raise OSError(f"{name}: {error}") from None

    def bytes_by_process(self) -> dict[int, int]:
        """Bytes that each process holds on all GPUs together, by process number.

        Without processes whose bytes the driver does not report. Raises OSError.
        """
        held: dict[int, int] = {}
        for gpu in self._gpus:
            for process in self._call_nvml("nvmlDeviceGetComputeRunningProcesses", gpu):
                if process.usedGpuMemory is not None:
                    held[process.pid] = held.get(process.pid, 0) + int(process.usedGpuMemory)
        return held

    def free_bytes(self) -> int:
        """Free bytes of the first GPU that torch would use. Raises OSError if there is none."""
        name = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
        if name.startswith(("GPU-", "MIG-")):
            gpu = self._call_nvml("nvmlDeviceGetHandleByUUID", name)
        elif name.isdigit() and int(name) < len(self._gpus):
            gpu = self._gpus[int(name)]
        else:
            raise OSError(f"there is no GPU {name!r}")
        return int(self._call_nvml("nvmlDeviceGetMemoryInfo", gpu).free)


def room_for(each: int) -> int | None:
    """How many times that many bytes are free on the GPU.

    Returns None if the driver does not report it.
    """
    try:
        return Nvml().free_bytes() // each
    except OSError:
        return None


def make_context() -> str:
    """Start to use the first GPU in this process, as torch would.

    Returns why that fails, else "".
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no CUDA driver ({error})"
    device = ctypes.c_int()
    context = ctypes.c_void_p()
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
    )
    for name, arguments in steps:
        code = int(getattr(library, name)(*arguments))
        if code:
            return f"CUDA cannot be used: {name} returns error {code}"
    return ""


class GpuMemoryWatch:
    """Asks the driver how much memory each process holds. `why` is the reason if it cannot.

    NVML is used in a helper process: the fork server must not load the driver.
    """

    _helper: socket.socket

    def __init__(self) -> None:
        """Start the helper; to be called first of all, as it inherits every open descriptor.

        Forks. Raises OSError if that is not possible.
        """
        self.why = "it has not answered yet"
        if sys.platform == "win32":
            raise NotImplementedError
        self._helper, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A child of a child, as the fork server takes its own children for submissions.
        pid = os.fork()
        if pid == 0:
            try:
                if os.fork() == 0:
                    self._helper.close()
                    _be_helper(there)
            finally:
                os._exit(0)  # a copy of the fork server must not go on to serve
        os.waitpid(pid, 0)
        there.close()

    def wait_ready(self) -> None:
        """Wait for the helper's first answer, and set `why`: "" where the driver can be asked.

        The helper tries whether the driver reports the memory of a process with a CUDA context.
        """
        answer = self._receive_answer(CONTEXT_SECONDS + ANSWER_SECONDS)
        self.why = answer.get("why", "the process that asks the driver ended")

    def bytes_by_process(self) -> dict[int, int]:
        """Bytes by process number as in /proc. Empty if the driver does not report it."""
        if self.why:
            return {}
        with contextlib.suppress(OSError):  # the helper is gone: then nothing is received
            self._helper.send(b"?")
        held = self._receive_answer(ANSWER_SECONDS).get("held", {})
        return {int(pid): int(count) for pid, count in held.items()}

    def _receive_answer(self, seconds: float) -> dict[str, Any]:
        """An answer of the helper. Empty if there is none in time, or it is gone.

        Waits so many seconds at most.
        """
        if select.select([self._helper], [], [], seconds)[0]:
            with contextlib.suppress(OSError, ValueError):
                answer: dict[str, Any] = json.loads(self._helper.recv(1 << 16))
                return answer
        return {}


def _be_helper(fork_server: socket.socket) -> None:
    """Answer until the fork server is gone. An error goes to the fork server's log."""
    try:
        _answer_questions(fork_server)
    except OSError:  # the fork server has ended before it read an answer
        pass
    except Exception:  # a mistake of ours: the fork server finds its helper gone, and says so
        traceback.print_exc()


def _answer_questions(fork_server: socket.socket) -> None:
    """Say whether NVML works, and then for each question how much each process holds.

    It ends when the fork server is gone, or at once where NVML does not work. Closes all other
    descriptors of this process. Raises OSError when the fork server is gone before it reads an
    answer.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    os.closerange(3, fork_server.fileno())
    os.closerange(fork_server.fileno() + 1, 4096)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()
    show_gpus(os.environ.get(VISIBLE))
    trial = _try_nvml()
    fork_server.send(json.dumps({"why": trial.why}).encode())
    while trial.nvml is not None and fork_server.recv(16):
        try:
            held = trial.nvml.bytes_by_process()
        except OSError:
            held = {}
        fork_server.send(json.dumps({"held": held}).encode())


class _NvmlTrial(NamedTuple):
    """NVML, or why it is of no use."""

    nvml: Nvml | None
    why: str = ""


def _try_nvml() -> _NvmlTrial:
    """Find out whether NVML reports the memory of a process by the number it has here.

    A forked child makes a CUDA context for that, and is killed. Returns NVML, or None and why not.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    # The child says "+" once it has a context, or why it has none.
    ready, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, (make_context() or "+").encode())
        time.sleep(CONTEXT_SECONDS)
        os._exit(0)
    try:
        if not select.select([ready], [], [], CONTEXT_SECONDS)[0]:
            return _NvmlTrial(None, "CUDA does not start")
        answer = os.read(ready, 1000).decode()
        if answer != "+":
            return _NvmlTrial(None, answer)
        nvml = Nvml()
        if pid not in nvml.bytes_by_process():
            return _NvmlTrial(None, "the driver does not report which process holds its memory")
        return _NvmlTrial(nvml)
    except OSError as error:
        return _NvmlTrial(None, f"the driver does not report who holds how much ({error})")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(writing)
