"""Of what is evidence made? Numbers, texts, arrays as bytes, and lists and mappings of them."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec

VERSION: Final = 1


class Array(msgspec.Struct, frozen=True, tag="array"):
    """Values of a tensor or array: dtype by name, shape, and the bytes in row-major order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


# Any is narrowed by `decode`: None, bool, int, float, str, Array, and lists and str-keyed mappings of these.
Fact = Any


class Status(enum.StrEnum):
    RETURNED = "returned"
    RAISED = "raised"
    TODO = "to do"
    MISSING = "missing"  # the file defines no such function
    BROKEN = "broken"  # the file itself could not be run


NO_MEMORY: Final = ("can't allocate memory", "DefaultCPUAllocator")


class Raised(msgspec.Struct, frozen=True):
    """An exception, at the student's own line."""

    type: str
    message: str
    line: int | None

    @property
    def out_of_memory(self) -> bool:
        """Whether memory had run out, of the host or of a GPU; torch says so of the host's in a RuntimeError."""
        return self.type.endswith("MemoryError") or any(said in self.message for said in NO_MEMORY)


class Observation(msgspec.Struct, frozen=True):
    """What one probe saw."""

    status: Status
    facts: dict[str, Fact] = {}
    raised: Raised | None = None


class Evidence(msgspec.Struct, frozen=True):
    """Everything the probes of one function saw."""

    exercise: str
    function: str
    bench: str
    seed: int
    observations: dict[str, Observation]
    version: int = VERSION
