"""Errors that the virtual CUDA device and the recorders of real devices raise. An error carries data; its text is
made when it is shown."""

from __future__ import annotations

import sys
from typing import Any


class VirtualCudaError(Exception):
    """Any error that this package raises on purpose."""


class BadTimeline(VirtualCudaError, ValueError):
    """A timeline from outside is not one that this package would make."""


class DeviceError(VirtualCudaError, RuntimeError):
    """A device cannot be opened, or is used in a way it does not allow."""


class BadSize(DeviceError, ValueError):
    """A memory size cannot be understood."""

    def __init__(self, size: object) -> None:
        super().__init__(size)
        self.size = size

    def __str__(self) -> str:
        return f'{self.size!r} is not a size; write a number of bytes, or for example "8 GiB" or "512 MiB"'


class BadDeviceCount(DeviceError, ValueError):
    """A number of devices cannot be understood, or is out of range."""

    def __init__(self, count: object) -> None:
        super().__init__(count)
        self.count = count

    def __str__(self) -> str:
        return f"{self.count!r} is not a number of devices; write a whole number, 1 or more"


class UnknownGpu(DeviceError, ValueError):
    """The modelled clock does not know this GPU."""

    def __init__(self, name: object, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        return f"there are no figures for a GPU {self.name!r}; choose one of {', '.join(self.known)}"


class UnknownClock(DeviceError, ValueError):
    """There is no such clock."""

    def __init__(self, name: object, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        return f"there is no clock {self.name!r}; choose one of {', '.join(self.known)}"


class BadClockRecord(VirtualCudaError, ValueError):
    """A file with the times of a GPU cannot be used."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file} is no record of a GPU's times: {self.reason}"


class _OfOneDevice(DeviceError):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.device = device


class AlreadyOpen(_OfOneDevice):
    """A device is opened while another one is open in this process."""

    def __str__(self) -> str:
        return f"a {self.device} is already open in this process; leave its `with` block before you enter another one"


class NoSuchDevice(DeviceError):
    """This machine, or its torch, does not have the device that was asked for."""

    def __init__(self, kind: object, wanted: int = 1, found: int = 0) -> None:
        super().__init__(kind, wanted, found)
        self.kind = kind
        self.wanted = wanted
        self.found = found

    @property
    def missing(self) -> str:
        """What this machine lacks, without advice."""
        if self.found:
            return f"this machine has {self.found} {self.kind!r} device{'s' * (self.found > 1)}, not {self.wanted}"
        return f"this machine has no {self.kind!r} device that torch can use"

    def __str__(self) -> str:
        if self.kind not in ("cuda", "mps", "cpu"):
            return f'there is no device {self.kind!r}; choose "auto", "virtual", "cuda", "mps" or "cpu"'
        return f'{self.missing}; choose "virtual" for a CUDA device that needs no GPU'


class SelectionOnly(_OfOneDevice):
    """A model is moved to a virtual device that can only be selected."""

    def __str__(self) -> str:
        return f"the virtual device {self.device!r} supports device selection only; models cannot run on it"


class RealDeviceInUse(_OfOneDevice):
    """The virtual device is opened by a process that already uses a real GPU."""

    def __str__(self) -> str:
        return (
            f"this process already uses the real device {self.device!r}, which the virtual CUDA device would hide; "
            "enter it before the first CUDA call, or in a process of its own"
        )


class DeviceClosed(_OfOneDevice):
    """A tensor of a virtual device is used after the device was closed."""

    def __str__(self) -> str:
        return (
            f"this tensor is on the virtual device {self.device!r}, whose `with` block has ended; "
            "move it with .cpu() before the block ends"
        )


class TorchUnsupported(DeviceError):
    """This release of torch lacks an internal that the virtual device needs."""

    def __init__(self, part: str, version: str) -> None:
        super().__init__(part, version)
        self.part = part
        self.version = version

    def __str__(self) -> str:
        return (
            f"this torch ({self.version}) has changed {self.part}, which the virtual CUDA device is built on; "
            "install the torch that constraints.txt names, or a newer gpudojo"
        )


class DuplicatePatch(DeviceError):
    """Two patches of one stage replace the same attribute of torch."""

    def __init__(self, target: str, first: str, second: str) -> None:
        super().__init__(target, first, second)
        self.target = target
        self.first = first
        self.second = second

    def __str__(self) -> str:
        return f"{self.target} is patched by both {self.first} and {self.second} in the same stage"


def torch_lacks(error: AttributeError | ImportError) -> TorchUnsupported | None:
    """TorchUnsupported, if what is missing is missing in torch and not in this package."""
    home: Any = error.name
    if isinstance(error, AttributeError):
        home = getattr(error.obj, "__module__", None) or getattr(error.obj, "__name__", "")
    if str(home).partition(".")[0] != "torch":
        return None
    return TorchUnsupported(f"something ({error})", str(vars(sys.modules["torch"]).get("__version__", "")))
