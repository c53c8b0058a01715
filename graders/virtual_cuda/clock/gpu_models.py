"""The GPUs that the clock knows: the figures of `gpus.json`, by name."""

from __future__ import annotations

import functools
import json
import math
import re
from bisect import bisect
from importlib import resources
from typing import Any, Final, Literal, NamedTuple

import msgspec

from virtual_cuda.clock.kernels import Chip, Kernel
from virtual_cuda.errors import UnknownGpu

CPU: Final = "CPU"
# The GPU whose times are modelled where none is named: that of a free notebook at Colab.
USUAL_GPU: Final = "T4"
# Collective operations that reduce what all ranks have and give it to all of them.
_REDUCED_FOR_ALL: Final = ("allreduce", "all_reduce", "allreduce_coalesced")
_MESSAGE_SECONDS: Final = 5e-6  # an estimate: what a message takes from rank to rank without data


class KernelFigures(NamedTuple):
    """How long kernels of one kind take."""

    least: float  # seconds, with next to no data
    bytes_factor: float  # times as long as the memory needs at its bandwidth
    flops_factor: float  # times as long as arithmetic at its rate, and steps in turn, need


class CopyPoint(NamedTuple):
    """How long a copy of one size takes; other sizes lie between two such points."""

    size: float
    device: float  # seconds that it keeps the device
    host: float  # seconds that it keeps the host


class CopySeconds(NamedTuple):
    """The seconds that a copy keeps the host, and those that it keeps the device."""

    host: float
    device: float


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Times are in seconds, sizes in bytes, rates per second."""

    name: str
    title: str  # what torch.cuda.get_device_name() says
    # Measured: fitted to times that were recorded on it. Estimated: from what is published.
    figures: Literal["measured", "estimated"]
    source: str  # where the figures come from
    memory: int
    capability: tuple[int, int]
    sms: int  # multiprocessors
    l2: int  # the second-level cache
    # What else torch.cuda.get_device_properties() says, by torch's names: clocks in kHz, the bus in
    # bits.
    properties: dict[str, int]
    bandwidth: float  # of the memory, as reached by kernels
    # By unit, as reached: "float32", "float64", and "tf32" and "float16" of tensor cores.
    flops: dict[str, float]
    latency: float  # from the launch to the start of a kernel
    gap: float  # between two kernels of a stream
    host: dict[str, float]  # what the host needs, by the name of the cost
    kernels: dict[str, KernelFigures]  # by kind
    copies: dict[str, list[CopyPoint]]  # by direction and pinning, see `way_of_copy`
    link: float  # bytes per second from one GPU to the next, in one direction

    @property
    def label(self) -> str:
        """The name to tell with a time: "H200", or "T4 (estimated)" if nothing was measured."""
        if self.figures == "measured":
            return self.name
        return f"{self.name} ({self.figures})"

    def chip(self, tf32: bool = False) -> Chip:
        """The figures for the rules of kernels; `tf32` is torch's setting for matrix products."""
        has_bfloat16 = self.capability[0] >= 8
        return Chip(
            sms=self.sms,
            flops=self.flops,
            bandwidth=self.bandwidth,
            tf32=tf32,
            bfloat16=has_bfloat16,
        )

    def kernel_seconds(self, kernel: Kernel) -> float:
        """The modelled time of a kernel, in seconds."""
        figures = self._figures_of(kernel)
        # The time of the memory, and that of the arithmetic.
        moved = self.bytes_from_memory(kernel.bytes)
        moving = figures.bytes_factor * moved / self.bandwidth
        rate = self.flops_per_second(kernel.unit)
        computing = figures.flops_factor * (kernel.flops / rate + kernel.seconds)
        return figures.least + moving + computing

    def least_seconds(self, kernel: Kernel) -> float:
        """The least time of a kernel of this kind, and at least that of a launch."""
        least = self._figures_of(kernel).least
        return max(least, self.gap)

    def _figures_of(self, kernel: Kernel) -> KernelFigures:
        """The figures for kernels of this kind; those of "pointwise" for a kind without figures."""
        return self.kernels.get(kernel.kind, self.kernels["pointwise"])

    def flops_per_second(self, unit: str) -> float:
        """The rate of a unit; that of "float32" where the GPU has no such unit."""
        return self.flops.get(unit, self.flops["float32"])

    def bytes_from_memory(self, size: float) -> float:
        """The bytes that count for the time of a kernel.

        What fits into a quarter of the second-level cache comes at twice the rate.
        """
        low = self.l2 / 4
        high = self.l2
        share = (size - low) / (high - low)
        share = min(max(share, 0.0), 1.0)
        return size * (0.5 + 0.5 * share)

    def collective_seconds(self, name: str, size: int, ranks: int) -> float:
        """How many seconds an exchange of `size` bytes between ranks keeps the device.

        `name` is that of the exchange: "allreduce". The ranks form a ring. What is reduced for all
        of them goes round it twice, anything else once; a rank alone sends nothing.
        """
        if ranks < 2:
            return 0.0
        rounds = 2 if name in _REDUCED_FOR_ALL else 1
        messages = rounds * (ranks - 1)
        sent = size * messages / ranks
        return messages * _MESSAGE_SECONDS + sent / self.link

    def copy_seconds(
        self, direction: str, size: int, pinned: bool, again: bool = False
    ) -> CopySeconds:
        """How long a copy of this many bytes keeps the host and the device, in seconds.

        `direction` is "to_device", "to_host" or "between_devices". `again` says that the copy goes
        into memory that was in use before.
        """
        way = way_of_copy(direction, pinned, again)
        low, high = _points_around(size, self.copies[way])
        # How far the size is from the first point, by their ratio.
        times_low = max(size, low.size) / low.size
        share = math.log(times_low) / math.log(high.size / low.size)
        return CopySeconds(
            host=_interpolate(low.host, high.host, share),
            device=_interpolate(low.device, high.device, share),
        )


def _points_around(size: int, points: list[CopyPoint]) -> tuple[CopyPoint, CopyPoint]:
    """The two neighbouring points that a size lies between.

    Below the first point it is the first two, and above the last the last two.
    """
    sizes = [point.size for point in points]
    index = bisect(sizes, size)
    index = min(max(index, 1), len(points) - 1)
    return points[index - 1], points[index]


def _interpolate(low: float, high: float, share: float) -> float:
    """The figure between two, by a share of their ratio; 0 where the lower one is 0."""
    if not low:
        return 0.0
    ratio = high / low
    return low * math.pow(ratio, share)


def way_of_copy(direction: str, pinned: bool, again: bool = False) -> str:
    """The name of a way to copy, among the figures of a GPU.

    Copies to the host into used memory have their own: the system hands out new memory page by
    page.
    """
    if direction == "between_devices":
        return direction
    if pinned:
        return f"{direction} pinned"
    if again and direction == "to_host":
        return f"{direction} used"
    return f"{direction} pageable"


# ---- the GPUs of gpus.json -----------------------------------------------------------------------

_Figures = dict[str, Any]  # of one GPU, by the names of the fields of `Gpu`


def gpus() -> dict[str, Gpu]:
    """All GPUs, by name."""
    found = dict(_gpus_and_cpu())
    del found[CPU]
    return found


def cpu_to_compare_with() -> Gpu:
    """A CPU, described like a GPU.

    An operator costs the host less, and its kernels run on the host, one after the other.
    """
    return _gpus_and_cpu()[CPU]


@functools.cache
def _gpus_and_cpu() -> dict[str, Gpu]:
    """The CPU and all GPUs by name; `gpus.json` is read once, and they are remembered."""
    file = resources.files(__package__).joinpath("gpus.json")
    text = file.read_text(encoding="utf-8")
    found: dict[str, Gpu] = {}
    for name, figures in json.loads(text).items():
        figures["name"] = name
        if "like" in figures:
            figures = _complete_figures(figures, found)
        found[name] = msgspec.convert(figures, Gpu)
    return found


def _complete_figures(figures: _Figures, known: dict[str, Gpu]) -> _Figures:
    """All figures of a GPU of which only published figures are known.

    The other figures are those of the GPU that it is `like`, which is among the known ones. The
    least times of kernels are multiplied by `slower`, and a copy takes at least what the `bus`
    needs. Raises KeyError where `like`, `slower` or `bus` is missing.
    """
    published = dict(figures)
    base = known[published.pop("like")]
    slower = published.pop("slower")
    bus = published.pop("bus")
    kernels = {}
    for kind, kernel in base.kernels.items():
        least = kernel.least * slower
        kernels[kind] = kernel._replace(least=least)
    copies = {}
    for way, points in base.copies.items():
        copies[way] = [_copy_by_bus(point, bus) for point in points]
    # What is published goes before what is scaled, and that before what is taken over.
    complete: _Figures = msgspec.to_builtins(base)
    complete["figures"] = "estimated"
    complete["kernels"] = kernels
    complete["copies"] = copies
    complete.update(published)
    complete["host"] = base.host | published.get("host", {})
    complete["link"] = published.get("link", bus)
    return complete


def _copy_by_bus(point: CopyPoint, bus: float) -> CopyPoint:
    """The figures of a copy over a bus of so many bytes per second.

    They are those of `point`, but not less than the bus needs.
    """
    fastest = point.size / bus
    host = max(point.host, fastest) if point.host else 0.0
    return CopyPoint(point.size, max(point.device, fastest), host)


def gpu_named(name: str) -> Gpu:
    """The GPU of this name or title, whatever the case and the spaces.

    Raises UnknownGpu, which lists the names there are.
    """
    wanted = _plain_name(name) if isinstance(name, str) else ""
    for gpu in gpus().values():
        names = (_plain_name(gpu.name), _plain_name(gpu.title))
        if wanted and wanted in names:
            return gpu
    raise UnknownGpu(name, tuple(gpus()))


def _plain_name(name: str) -> str:
    """A name without its maker, in lower case, letters and digits alone."""
    return re.sub(r"nvidia|geforce|tesla|gpu|[^a-z0-9]", "", name.lower())
