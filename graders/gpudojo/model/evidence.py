"""Evidence: what a student's function did, as plain typed data, and its encoding."""

from __future__ import annotations

import enum
import math
from typing import Any, Final

import msgspec
from virtual_cuda.errors import BadTimeline
from virtual_cuda.ledger import Timeline, check_timeline

from gpudojo.model.errors import BadEvidence

EVIDENCE_VERSION: Final = 1


class Array(msgspec.Struct, frozen=True, tag="array"):
    """Values of a tensor or array: dtype by name, shape, and the bytes in row-major order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


# Any is narrowed by `decode`: None, bool, int, float, str, Array, and lists and str-keyed mappings of these.
Fact = Any


class CallStatus(enum.StrEnum):
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
    source: str = ""  # file:line of the author's code that could not use what the student's function did

    @property
    def out_of_memory(self) -> bool:
        """Whether memory had run out, of the host or of a GPU; torch says so of the host's in a RuntimeError."""
        return self.type.endswith("MemoryError") or any(said in self.message for said in NO_MEMORY)


class Observation(msgspec.Struct, frozen=True):
    """What one probe saw."""

    status: CallStatus
    facts: dict[str, Fact] = {}
    raised: Raised | None = None


class Evidence(msgspec.Struct, frozen=True):
    """Everything the probes of one function saw."""

    exercise: str
    function: str
    bench: str
    seed: int
    observations: dict[str, Observation]
    version: int = EVIDENCE_VERSION


LARGEST: Final = 16 << 20
DEEPEST: Final = 16
_ARRAY: Final = "array"
PLAIN: Final = frozenset({type(None), bool, int, float, str})
TEXTS: Final = {str}
# Bytes of one element of every kind of array that probes send.
ELEMENTS: Final = {
    **{"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "int32": 4, "float32": 4},
    **{"uint16": 2, "uint32": 4, "uint64": 8, "int64": 8, "float64": 8, "complex64": 8, "complex128": 16},
}


def encode_evidence(evidence: Evidence) -> bytes:
    return msgspec.msgpack.encode(evidence)


def decode_evidence(data: bytes) -> Evidence:
    if len(data) > LARGEST:
        raise BadEvidence(f"{len(data)} bytes are more than {LARGEST}")
    try:
        evidence = msgspec.msgpack.decode(data, type=Evidence)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadEvidence(str(error)) from None
    return validated(evidence)


def validated(evidence: Evidence) -> Evidence:
    """Evidence that has been decoded by its types, with what they leave open looked at too."""
    if evidence.version != EVIDENCE_VERSION:
        raise BadEvidence(f"version {evidence.version} is not {EVIDENCE_VERSION}")
    for observation in evidence.observations.values():
        _make_whole(observation.facts, 0)
    return evidence


def _make_whole(facts: Any, depth: int) -> None:
    """Arrays made whole, in place; anything that is not a fact is refused. Most of a class's judging would be here,
    so plain values, nearly all there is, are not given a call of their own."""
    if depth > DEEPEST:
        raise BadEvidence("it is nested too deeply")
    if type(facts) is dict:
        items: Any = facts.items()
        if facts and set(map(type, facts)) != TEXTS:
            raise BadEvidence("a name that is no text is no fact")
    else:
        items = enumerate(facts)
    for key, value in items:
        kind = type(value)
        if kind in PLAIN:
            continue
        if kind is dict and value.get("type") == _ARRAY:
            facts[key] = _array(value)
        elif kind is dict or kind is list:
            _make_whole(value, depth + 1)
        else:
            raise BadEvidence(f"a {kind.__name__} is no fact")


def _array(value: dict[str, Any]) -> Array:
    """An array whose bytes are as many as its shape says; NumPy would read others as something else, or not at all."""
    try:
        array = msgspec.convert(value, Array)
    except msgspec.ValidationError as error:
        raise BadEvidence(str(error)) from None
    size = ELEMENTS.get(array.dtype)
    if size is None:
        raise BadEvidence(f"an array of {array.dtype[:40]!r} is no fact")
    if any(length < 0 for length in array.shape) or math.prod(array.shape) * size != len(array.data):
        raise BadEvidence(f"an array of shape {array.shape} has {len(array.data)} bytes")
    return array


def checked_timeline(timeline: Timeline) -> Timeline:
    """The timeline, if it is well-formed; raises BadEvidence."""
    try:
        return check_timeline(timeline)
    except BadTimeline as error:
        raise BadEvidence(str(error)) from None
