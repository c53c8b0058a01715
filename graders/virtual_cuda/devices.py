"""Opens the device that code runs on: virtual CUDA, real CUDA, MPS or the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch

from virtual_cuda.device.context import virtual_cuda
from virtual_cuda.errors import BadDeviceCount, NoSuchDevice
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.real.session import device_count, real_device
from virtual_cuda.sizes import parse_size

DeviceKind = Literal["auto", "virtual", "cuda", "mps", "cpu"]

_NAMES: Final = {"virtual": "the virtual CUDA device", "cuda": "CUDA", "mps": "MPS", "cpu": "the plain CPU"}


@dataclass(frozen=True)
class OpenDevice:
    """An open bench: the device student code is told to use, and the ledger of what it does there."""

    kind: str  # "virtual", "cuda", "mps" or "cpu"
    device: torch.device  # equal to what a tensor there says it is on
    ledger: Ledger
    why: str  # one sentence: why this bench


def choose_device(kind: str, devices: int = 1) -> tuple[str, str]:
    """Which bench is meant, and why: for "auto" this machine's GPUs if there are enough of them, else virtual ones."""
    if kind != "auto":
        return str(kind), f"{_NAMES.get(kind, kind)} was asked for"
    found = device_count("cuda")
    if found >= devices:
        return "cuda", "a GPU is here, so CUDA itself" if found == 1 else f"{found} GPUs are here, so CUDA itself"
    if found:
        return "virtual", f"only {found} of the {devices} GPUs asked for here, so {_NAMES['virtual']}"
    # MPS is not chosen even where it is there: it knows neither pinned memory nor peaks.
    return "virtual", f"no GPU here, so {_NAMES['virtual']}"


@contextlib.contextmanager
def open_device(kind: DeviceKind = "auto", devices: int = 1, memory: int | str = "8 GiB") -> Iterator[OpenDevice]:
    """Open a bench for the length of a `with` block; `memory` is the size of each virtual device.

    "auto" takes the machine's own GPUs and falls back on virtual ones; "virtual", "cuda", "mps" and "cpu" are taken
    at their word.
    """
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise BadDeviceCount(devices)
    size = parse_size(memory)
    chosen, why = choose_device(kind, devices)
    if chosen == "virtual":
        with virtual_cuda(devices=devices, memory=size) as gpu:
            yield OpenDevice(chosen, torch.device("cuda", 0), gpu.ledger, why)
        return
    if chosen in ("cuda", "mps") and 0 < device_count(chosen) < devices:
        raise NoSuchDevice(chosen, devices, device_count(chosen))
    with real_device(chosen) as bench:
        yield OpenDevice(chosen, bench.device, bench.ledger, why)
