"""Errors of the virtual CUDA device and the recorders of real devices.

An error carries data; its text is made last.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

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
class BadDeviceOption(DeviceError, ValueError):
    """An option of a device is of another type than it can be."""

    option: str
    value: object
    wanted: str
    text = "{self.option}={self.value!r} is not possible; write {self.wanted}"


_MOST_LISTED: Final = 40


def near_misses(name: str, known: Iterable[str]) -> list[str]:
    """The known names that look like `name`, the nearest first: at most five."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=5)
    return [by_lower[each] for each in close]


@dataclass(eq=False, repr=False)
class BadBudget(VirtualCudaError, ValueError):
    """A budget of a test cannot be understood."""

    value: object
    wanted: str
    text = "{self.value!r} is no budget; write {self.wanted}"


@dataclass(eq=False, repr=False)
class BadBudgetFile(VirtualCudaError, ValueError):
    """A file of budgets is missing, or cannot be read."""

    path: str
    reason: str
    text = (
        "{self.path} is no file of budgets: {self.reason}; "
        "make it with --virtual-cuda-budget-update"
    )


@dataclass(eq=False, repr=False)
class _Unknown(DeviceError, ValueError):
    name: object
    known: tuple[str, ...]
    advice: str = ""

    def __str__(self) -> str:
        """What is unknown, and what there is: near misses first; of very many, these alone."""
        near = near_misses(str(self.name), self.known)
        listed = near + [name for name in self.known if name not in near]
        names = ", ".join(listed)
        if len(listed) > _MOST_LISTED:
            names = ", ".join(near or listed[:_MOST_LISTED])
            names += f", … ({len(listed):,} in all)"
        text = super().__str__()
        if names:
            text += f"; choose one of {names}"
        if self.advice:
            text += f" ({self.advice})"
        return text


class UnknownGpu(_Unknown):
    """The modelled clock does not know this GPU."""

    text = "there are no figures for a GPU {self.name!r}"


class UnknownInLedger(_Unknown):
    """A question about a ledger names something that this ledger cannot have.

    Without this error, a typo would be answered with nothing.
    """

    text = "no ledger has {self.name!r}"


@dataclass(eq=False, repr=False)
class BadMark(VirtualCudaError, ValueError):
    """Something is no mark of a ledger, or not one between the two that are allowed here."""

    mark: object
    earliest: int
    latest: int
    text = (
        "{self.mark!r} is no mark of this ledger; take one with `ledger.mark()`: "
        "here, a whole number from {self.earliest} to {self.latest}"
    )


@dataclass(eq=False, repr=False)
class BadMoment(VirtualCudaError, ValueError):
    """Something is no record of a ledger and no index of one, or not after another that is."""

    moment: object
    earliest: int
    latest: int | None  # None where that is not known
    text = (
        "{self.moment!r} is no moment of this ledger here; give one of its records, or an index "
        "from {self.earliest}{self.limit}"
    )

    @property
    def limit(self) -> str:
        """The end of the range in words."""
        if self.latest is None:
            return ""
        return f" to {self.latest}"


@dataclass(eq=False, repr=False)
class BadLine(VirtualCudaError, ValueError):
    """A question about a ledger names a line that its file does not have."""

    line: object
    file: str
    lines: int  # 0 where that is not known
    text = "{self.file} has no line {self.line!r}; give a whole number from 1{self.limit}"

    @property
    def limit(self) -> str:
        """The end of the range in words."""
        if not self.lines:
            return ""
        return f" to {self.lines}"


@dataclass(eq=False, repr=False)
class BadLimit(VirtualCudaError, ValueError):
    """A question about a ledger is asked for so many that it could never say no, or yes."""

    limit: object
    text = "at_least={self.limit!r} is no number of records; give a whole number from 1"


@dataclass(eq=False, repr=False)
class NoRecords(VirtualCudaError, TypeError):
    """Something is no ledger, and no part of one."""

    given: object
    text = "{self.given!r} is no ledger and no part of one"


@dataclass(eq=False, repr=False)
class NoSpan(VirtualCudaError, TypeError):
    """Something is no record of a forward or backward pass, of a step or of an exchange."""

    given: object
    text = (
        "{self.given!r} has no inside; give a record of `forwards()`, `backward_passes()`, "
        "`optimizer_steps()` or `collectives()`"
    )


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
        """What this machine lacks, and what to choose instead; for no kind, which there are."""
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


class DevicePaused(DeviceClosed):
    """A tensor of a virtual device is used while the device is paused."""

    text = (
        "this tensor is on the virtual device {self.device!r}, which is paused here; "
        "use it after the pause, or move it with .cpu() before"
    )


class NotOpen(_OfOneDevice):
    """A virtual device is paused that is not open now: it is closed, or paused already."""

    text = "the virtual device {self.device!r} is not open now, so it cannot be paused"


@dataclass(eq=False, repr=False)
class NeedsValues(DeviceError, NotImplementedError):
    """An operator needs values, in a run that has none."""

    operator: str
    remedy: str = "run it with values (without `values=False`), or leave this part out"
    text = (
        "{self.operator} needs the values of its tensors, which a run without values does not "
        "have; {self.remedy}"
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
    """TorchUnsupported, if what is missing is missing in torch and not in this package; else None.

    It is returned, not raised.
    """
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
