"""What does a child need that uses a real GPU, and what does CUDA take before student code asks for anything?

CUDA looks itself up in /proc by its process number. In a process namespace that number is another one than the
/proc outside knows, so such a child sees a /proc of its own, or lives in no such namespace.
"""

from __future__ import annotations

import glob
import os
from typing import Final

from graders.sandbox import kernel

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
