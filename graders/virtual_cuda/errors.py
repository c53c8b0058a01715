"""Errors that the virtual CUDA device and the recorders of real devices raise."""

from __future__ import annotations


class DojoError(Exception):
    """Any error that gpudojo raises on purpose."""


class Refusal(DojoError):
    """One that whoever raises it has words for already."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


class BenchError(DojoError, RuntimeError):
    """A bench cannot be opened, or is used in a way it does not allow."""


class BadSize(BenchError, ValueError):
    """Something that should say how much memory there is does not."""

    def __init__(self, size: object) -> None:
        super().__init__(size)
        self.size = size

    def __str__(self) -> str:
        return f'{self.size!r} is not a size; write a number of bytes, or for example "8 GiB" or "512 MiB"'


class BadDeviceCount(BenchError, ValueError):
    """Something that should say how many devices there are does not."""

    def __init__(self, count: object) -> None:
        super().__init__(count)
        self.count = count

    def __str__(self) -> str:
        return f"{self.count!r} is not a number of devices; write a whole number, 1 or more"


class AlreadyOpen(BenchError):
    """A bench is entered while another one is open in this process."""

    def __init__(self, bench: str = "virtual CUDA device") -> None:
        super().__init__(bench)
        self.bench = bench

    def __str__(self) -> str:
        return f"a {self.bench} is already open in this process; leave its `with` block before you enter another one"


class NoSuchDevice(BenchError):
    """A bench is asked for on a device that this machine, or torch, does not have."""

    def __init__(self, kind: object, wanted: int = 1, found: int = 0) -> None:
        super().__init__(kind, wanted, found)
        self.kind = kind
        self.wanted = wanted
        self.found = found

    def __str__(self) -> str:
        if self.kind not in ("cuda", "mps", "cpu"):
            return f'there is no bench {self.kind!r}; the benches are "auto", "virtual", "cuda", "mps" and "cpu"'
        if self.found:
            there = f"this machine has {self.found} {self.kind!r} device{'s' * (self.found > 1)}, not {self.wanted}"
        else:
            there = f"this machine has no {self.kind!r} device that torch can use"
        return f'{there}; open the bench "virtual" for a CUDA device that needs no GPU'


class SelectionOnly(BenchError):
    """Something is to be computed on a virtual device that is only there to be selected."""

    def __init__(self, device: str = "mps") -> None:
        super().__init__(device)
        self.device = device

    def __str__(self) -> str:
        return (
            f"the virtual device {self.device!r} can be selected, and tried with a tensor, but holds no model; "
            "which device a machine has is asked of torch"
        )


class RealDeviceInUse(BenchError):
    """The virtual device is entered by a process that already works on a real GPU."""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(device)
        self.device = device

    def __str__(self) -> str:
        return (
            f"this process already uses the real device {self.device!r}, which the virtual CUDA device would hide; "
            "enter it before the first CUDA call, or in a process of its own"
        )


class DeviceClosed(BenchError):
    """A tensor of a virtual device is used after the device is gone."""

    def __init__(self, device: str = "cuda:0") -> None:
        super().__init__(device)
        self.device = device

    def __str__(self) -> str:
        return (
            f"this tensor is on the virtual device {self.device!r}, whose `with` block has ended; "
            "move it with .cpu() before the block ends"
        )


class TorchUnsupported(BenchError):
    """This release of torch no longer has an internal that the virtual device stands on."""

    def __init__(self, part: str, version: str) -> None:
        super().__init__(part, version)
        self.part = part
        self.version = version

    def __str__(self) -> str:
        return (
            f"this torch ({self.version}) has changed {self.part}, which the virtual CUDA device is built on; "
            "install the torch that constraints.txt names, or a newer gpudojo"
        )
