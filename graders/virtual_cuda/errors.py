"""Errors of the virtual CUDA device and the recorders of real devices.

An error carries data; its text is made last.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from virtual_cuda.device_kinds import DEVICE_CHOICES, DEVICE_TYPES


class VirtualCudaError(Exception):
    """Any error that this package raises on purpose.

    One that carries data has a `text` with places for it.
    """

    text: ClassVar = ""

    def __str__(self) -> str:
        if self.text:
            return self.text.format(self=self)
        return super().__str__()


class BadTimeline(VirtualCudaError, ValueError):
    """A timeline from outside is not one that this package would make."""


class DeviceError(VirtualCudaError, RuntimeError):
    """A device cannot be opened, or is used in a way it does not allow."""


@dataclass(eq=False, repr=False)
class BadSize(DeviceError, ValueError):
    """A memory size cannot be understood."""

    size: object
    text = (
        '{self.size!r} is not a size; write a number of bytes, or for example "8 GiB" or "512 MiB"'
    )


@dataclass(eq=False, repr=False)
class BadDeviceCount(DeviceError, ValueError):
    """A number of devices cannot be understood, or is out of range."""

    count: object
    text = "{self.count!r} is not a number of devices; write a whole number, 1 or more"


@dataclass(eq=False, repr=False)
class _Unknown(DeviceError, ValueError):
    name: object
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"{super().__str__()}; choose one of {', '.join(self.known)}"


class UnknownGpu(_Unknown):
    """The modelled clock does not know this GPU."""

    text = "there are no figures for a GPU {self.name!r}"


class UnknownInLedger(_Unknown):
    """A question about a ledger names something that no ledger has.

    Without this error, a typo would be answered with nothing.
    """

    text = "no ledger has {self.name!r}"


class UnknownClock(_Unknown):
    """There is no such clock."""

    text = "there is no clock {self.name!r}"


@dataclass(eq=False, repr=False)
class _OfOneDevice(DeviceError):
    device: str


class AlreadyOpen(_OfOneDevice):
    """A device is opened while another one is open in this process."""

    text = (
        "a {self.device} is already open in this process; "
        "leave its `with` block before you enter another one"
    )


@dataclass(eq=False, repr=False)
class NoSuchDevice(DeviceError):
    """This machine, or its torch, does not have the device that was asked for."""

    kind: object
    wanted: int = 1
    found: int = 0

    @property
    def missing(self) -> str:
        """What this machine lacks, without advice."""
        if self.found:
            plural = ""
            if self.found > 1:
                plural = "s"
            found = f"{self.found} {self.kind!r} device{plural}"
            return f"this machine has {found}, not {self.wanted}"
        return f"this machine has no {self.kind!r} device that torch can use"

    def __str__(self) -> str:
        if self.kind not in DEVICE_TYPES:
            *most, last = (f'"{choice}"' for choice in DEVICE_CHOICES)
            return f"there is no device {self.kind!r}; choose {', '.join(most)} or {last}"
        return f'{self.missing}; choose "virtual" for a CUDA device that needs no GPU'


class SelectionOnly(_OfOneDevice):
    """A model is moved to a virtual device that can only be selected."""

    text = (
        "the virtual device {self.device!r} supports device selection only; models cannot run on it"
    )


class RealDeviceInUse(_OfOneDevice):
    """The virtual device is opened by a process that already uses a real GPU."""

    text = (
        "this process already uses the real device {self.device!r}, "
        "which the virtual CUDA device would hide; "
        "enter it before the first CUDA call, or in a process of its own"
    )


class DeviceClosed(_OfOneDevice):
    """A tensor of a virtual device is used after the device was closed."""

    text = (
        "this tensor is on the virtual device {self.device!r}, whose `with` block has ended; "
        "move it with .cpu() before the block ends"
    )


@dataclass(eq=False, repr=False)
class TorchUnsupported(DeviceError):
    """This release of torch lacks an internal that the virtual device needs."""

    part: str
    version: str
    text = (
        "this torch ({self.version}) has changed {self.part}, "
        "which the virtual CUDA device is built on; "
        "install the torch that constraints.txt names, or a newer gpudojo"
    )


@dataclass(eq=False, repr=False)
class TorchLacks(DeviceError, NotImplementedError):
    """A feature is used that needs something which this release of torch does not have."""

    path: str
    feature: str
    version: str
    text = (
        "{self.feature} cannot be used on the virtual CUDA device with torch {self.version}, "
        "which has no {self.path}"
    )


@dataclass(eq=False, repr=False)
class DuplicatePatch(DeviceError):
    """Two patches of one stage replace the same attribute of torch."""

    target: str
    first: str
    second: str
    text = "{self.target} is patched by both {self.first} and {self.second} in the same stage"


def torch_lacks(error: AttributeError | ImportError) -> TorchUnsupported | None:
    """TorchUnsupported, if what is missing is missing in torch and not in this package."""
    home: Any = error.name
    if isinstance(error, AttributeError):
        home = getattr(error.obj, "__module__", None)
        if not home:
            home = getattr(error.obj, "__name__", "")
    if str(home).partition(".")[0] != "torch":
        return None
    return TorchUnsupported(
        f"something ({error})", str(vars(sys.modules["torch"]).get("__version__", ""))
    )
