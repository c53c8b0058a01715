"""The kinds of device that code may run on: the one list that options, messages and types read.

It imports nothing, so that options of a command line can read it without torch.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

DeviceType = Literal["cuda", "mps", "cpu"]  # as torch has them; each may be a real device
DeviceKind = Literal["virtual", DeviceType]
DeviceChoice = Literal["auto", DeviceKind]  # what a user may ask for

DEVICE_TYPES: Final[tuple[str, ...]] = get_args(DeviceType)
DEVICE_KINDS: Final[tuple[str, ...]] = get_args(DeviceKind)
DEVICE_CHOICES: Final[tuple[str, ...]] = get_args(DeviceChoice)
REAL_GPUS: Final = ("cuda", "mps")  # the kinds that a machine may lack

KIND_TITLES: Final = {
    "virtual": "the virtual CUDA device",
    "cuda": "CUDA",
    "mps": "MPS",
    "cpu": "the plain CPU",
}
