"""What is known of a submission once it has run? Its evidence, and what else happened, to be judged later."""

from __future__ import annotations

import enum

import msgspec

from graders.bench.ledger.timeline import Timeline, checked
from graders.errors import BadEvidence
from graders.evidence import Evidence, Raised, validated

VERSION = 1


class What(enum.StrEnum):
    """What can happen to a submission on the way."""

    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    TAMPERED = "tampered"
    NOT_RUN = "not run"


class Incident(msgspec.Struct, frozen=True):
    what: What
    step: str  # "exercise::function" or "file PATH"
    detail: str


class Place(msgspec.Struct, frozen=True):
    """Which definition of a function was graded."""

    exercise: str
    function: str
    file: str | None
    line: int | None
    cell: int | None
    note: str = ""


class Seen(msgspec.Struct, frozen=True):
    """One function."""

    evidence: Evidence
    seconds: float
    signature: str = ""
    timeline: Timeline | None = None  # of a student's busiest call
    timelines: list[Timeline] = []  # of a reference's calls on the public seed, without lines of code

    def joined(self, other: Seen) -> Seen:
        """With what another child saw of the same function, in other scenarios."""
        both = {**self.evidence.observations, **other.evidence.observations}
        return Seen(
            msgspec.structs.replace(self.evidence, observations=both),
            self.seconds + other.seconds,
            self.signature or other.signature,
            self.timeline or other.timeline,
            [*self.timelines, *other.timelines],
        )


class Ran(msgspec.Struct, frozen=True):
    """One file."""

    lines: dict[str, int]
    cells: list[int] = []
    broken: Raised | None = None


class Record(msgspec.Struct):
    """One submission, under the digest of its content."""

    digest: str
    places: list[Place] = []
    seen: dict[str, Seen] = {}  # by "exercise::function"
    files: dict[str, Ran] = {}
    incidents: list[Incident] = []
    layers: dict[str, str] = {}
    output: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    device_bytes: int = 0  # of a real GPU, at most
    version: int = VERSION


def encode(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(data: bytes) -> Record:
    try:
        record = msgspec.msgpack.decode(data, type=Record)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadEvidence(str(error)) from None
    if record.version != VERSION:
        raise BadEvidence(f"version {record.version} is not {VERSION}")
    for seen in record.seen.values():
        validated(seen.evidence)
        for timeline in (*seen.timelines, *filter(None, [seen.timeline])):
            checked(timeline)
    return record
