"""The GPUs that the clock knows: the figures of `gpus.json`, by name."""

from __future__ import annotations

import functools
import json
import math
import re
from bisect import bisect
from importlib import resources
from typing import Any, Final

import msgspec

from virtual_cuda.clock.kernels import Chip, Kernel
from virtual_cuda.errors import UnknownGpu

CPU: Final = "CPU"
# The GPU whose times are modelled where none is named: that of a free notebook at Colab.
USUAL_GPU: Final = "T4"
Points = list[tuple[float, float, float]]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Times are in seconds, sizes in bytes, rates per second."""

    name: str
    title: str  # what torch.cuda.get_device_name() says
    source: str  # where the figures come from
    memory: int
    capability: tuple[int, int]
    sms: int
    l2: int
    # What else torch.cuda.get_device_properties() says, by torch's names: clocks in kHz, the bus in
    # bits.
    properties: dict[str, int]
    bandwidth: float  # of the memory, as reached by kernels
    flops: dict[
        str, float
    ]  # by unit, as reached: "float32", "float64", and "tf32" and "float16" of tensor cores
    latency: float  # from the launch to the start of a kernel
    gap: float  # between two kernels of a stream
    host: dict[str, float]  # what the host needs, by the name of the cost
    kernels: dict[
        str, tuple[float, float, float]
    ]  # by kind: least time; bytes and FLOPs, as multiples of the peak's
    copies: dict[
        str, Points
    ]  # by direction and pinning: bytes, time on the device, time of the host

    def chip(self, tf32: bool = False) -> Chip:
        """The figures for the rules of kernels; `tf32` is torch's setting for matrix products."""
        return Chip(self.sms, self.flops, self.bandwidth, tf32, self.capability[0] >= 8)

    def rate(self, unit: str) -> float:
        return self.flops.get(unit, self.flops["float32"])

    def resident(self, size: float) -> float:
        """The bytes that count for the time of a kernel.

        What fits into a quarter of the second-level cache comes at twice the rate.
        """
        low = self.l2 / 4
        high = self.l2
        share = min(max((size - low) / (high - low), 0.0), 1.0)
        return size * (0.5 + 0.5 * share)

    def least(self, kernel: Kernel) -> float:
        """The least time of a kernel of this kind, and at least that of a launch."""
        return max(self.kernels.get(kernel.kind, self.kernels["pointwise"])[0], self.gap)

    def seconds(self, kernel: Kernel) -> float:
        """The modelled time of a kernel."""
        least, moved, computed = self.kernels.get(kernel.kind, self.kernels["pointwise"])
        return (
            least
            + moved * self.resident(kernel.bytes) / self.bandwidth
            + computed * kernel.flops / self.rate(kernel.unit)
        )

    def copy(
        self, direction: str, size: int, pinned: bool, again: bool = False
    ) -> tuple[float, float]:
        """The seconds that a copy keeps the host, and those that it keeps the device.

        `again` says that the copy goes into memory that was in use before.
        """
        points = self.copies[way_of(direction, pinned, again)]
        place = min(max(bisect([point[0] for point in points], size), 1), len(points) - 1)
        (low, *before), (high, *after) = points[place - 1], points[place]
        share = math.log(max(size, low) / low) / math.log(high / low)
        there, host = (
            a * (b / a) ** share if a else 0.0 for a, b in zip(before, after, strict=True)
        )
        return host, there


def way_of(direction: str, pinned: bool, again: bool = False) -> str:
    """The name of a way to copy, among the figures of a GPU.

    Copies to the host into used memory have their own: the system hands out new memory page by
    page.
    """
    if direction == "between_devices":
        return direction
    kind = "pinned" if pinned else "used" if again and direction == "to_host" else "pageable"
    return f"{direction} {kind}"


def gpus() -> dict[str, Gpu]:
    """All GPUs, by name."""
    return {name: gpu for name, gpu in _every().items() if name != CPU}


def a_cpu() -> Gpu:
    """A CPU to compare with, described like a GPU.

    An operator costs the host less, and its kernels run on the host, one after the other.
    """
    return _every()[CPU]


@functools.cache
def _every() -> dict[str, Gpu]:
    """The CPU and all GPUs by name; `gpus.json` is read once."""
    text = resources.files(__package__).joinpath("gpus.json").read_text(encoding="utf-8")
    found: dict[str, Gpu] = {}
    for name, figures in json.loads(text).items():
        found[name] = (
            _derived(name, figures, found)
            if "like" in figures
            else _read({"name": name, **figures})
        )
    return found


def _read(figures: dict[str, Any]) -> Gpu:
    return msgspec.convert(figures, Gpu)


def _derived(name: str, figures: dict[str, Any], known: dict[str, Gpu]) -> Gpu:
    """A GPU of which only published figures are known.

    The other figures are those of the GPU that it is `like`, scaled by clock and bus.
    """
    figures = dict(figures)
    base = known[figures.pop("like")]
    slower = figures.pop("slower")
    bus = figures.pop("bus")
    own = msgspec.to_builtins(base)
    figures["host"] = base.host | figures.get("host", {})
    own["kernels"] = {
        kind: (least * slower, *rest) for kind, (least, *rest) in base.kernels.items()
    }
    own["copies"] = {
        way: [
            (size, max(there, size / bus), host and max(host, size / bus))
            for size, there, host in points
        ]
        for way, points in base.copies.items()
    }
    return _read({**own, **figures, "name": name})


def gpu_named(name: str) -> Gpu:
    """The GPU of this name or title, whatever the case and the spaces.

    Raises UnknownGpu, which lists the names there are.
    """
    wanted = _plain(name) if isinstance(name, str) else ""
    for gpu in gpus().values():
        if wanted and wanted in (_plain(gpu.name), _plain(gpu.title)):
            return gpu
    raise UnknownGpu(name, tuple(gpus()))


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|gpu|[^a-z0-9]", "", name.lower())
