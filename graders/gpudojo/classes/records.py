"""What was observed of a submission, and its encoding."""

from __future__ import annotations

import enum
import functools
from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from virtual_cuda.ledger import Timeline

from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import (
    Evidence,
    check_evidence,
    decode_untrusted_bytes,
    require_valid_timeline,
)
from gpudojo.sandbox.protocol import Chosen, Loaded

VERSION: Final = 3


class IncidentKind(enum.StrEnum):
    """What can happen to a submission while it runs."""

    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    # Findings of the watch over student code, as in `FindingKind`.
    PUT_BACK = "put back"
    REPORTED = "reported"
    UNMEASURED = "could not be measured"
    FORGED = "forged"  # without a step: the whole submission
    NOT_RUN = "not run"


class Incident(msgspec.Struct, frozen=True):
    """Something that happened in one step."""

    what: IncidentKind
    step: str  # "exercise::function" or "file PATH"
    detail: str


class FunctionRecord(msgspec.Struct, frozen=True):
    """What was observed of one function."""

    evidence: Evidence
    seconds: float
    signature: str = ""
    timeline: Timeline | None = None  # of a student's busiest call
    timelines: list[
        Timeline
    ] = []  # of a reference's calls on the public seed, without lines of code

    def join_with(self, other: FunctionRecord) -> FunctionRecord:
        """A new record, with what another child saw of the same function in other scenarios."""
        both = {**self.evidence.observations, **other.evidence.observations}
        return FunctionRecord(
            msgspec.structs.replace(self.evidence, observations=both),
            self.seconds + other.seconds,
            self.signature or other.signature,
            self.timeline or other.timeline,
            [*self.timelines, *other.timelines],
        )


class Record(msgspec.Struct, dict=True):
    """What was observed of one submission.

    Its functions stay encoded until they are asked for: decoded, they may take ten times the
    memory, and a grader holds the records of all submissions that are running.
    """

    digest: str
    places: list[Chosen] = []
    incidents: list[Incident] = []
    layers: dict[str, str] = {}
    output: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    device_bytes: int = 0  # peak, of a real GPU
    version: int = VERSION
    files: dict[str, Loaded] = {}
    seen: dict[str, msgspec.Raw] = {}  # by "exercise::function", each an encoded FunctionRecord
    asked: list[str] = []  # the functions that it was run for, "exercise::function", sorted

    def add_function(self, key: str, function: FunctionRecord) -> None:
        """Add what was observed of a function, or replace it."""
        data = msgspec.msgpack.encode(function)
        self.seen[key] = msgspec.Raw(data)
        self.__dict__.pop("functions", None)

    def decode_function(self, key: str) -> FunctionRecord:
        """Decode what was observed of a function. Raises KeyError, and BadEvidence if damaged."""
        function = decode_untrusted_bytes(_function_decoder.decode, self.seen[key])
        check_evidence(function.evidence)
        for timeline in function.timelines:
            require_valid_timeline(timeline)
        if function.timeline is not None:
            require_valid_timeline(function.timeline)
        return function

    def covers(self, functions: Iterable[str]) -> bool:
        """True if it was run for all of these functions, "exercise::function"."""
        return set(self.asked).issuperset(functions)

    def join_with(self, other: Record) -> Record:
        """A new record, with what another run of the same files saw of other functions."""
        layers = dict(self.layers)
        for name, why_missing in other.layers.items():
            layers[name] = layers.get(name) or why_missing
        output = self.output
        if other.output not in output:
            output += other.output
        return msgspec.structs.replace(
            self,
            places=[*self.places, *other.places],
            incidents=[*dict.fromkeys([*self.incidents, *other.incidents])],
            layers=layers,
            output=output,
            seconds=self.seconds + other.seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            peak_bytes=max(self.peak_bytes, other.peak_bytes),
            device_bytes=max(self.device_bytes, other.device_bytes),
            files={**self.files, **other.files},
            seen={**self.seen, **other.seen},
            asked=sorted({*self.asked, *other.asked}),
        )

    def without(self, functions: Collection[str]) -> Record:
        """A new record, without what was seen of functions of these names."""
        seen = {}
        for key, data in self.seen.items():
            if key.rpartition("::")[2] not in functions:
                seen[key] = data
        return msgspec.structs.replace(
            self,
            places=[place for place in self.places if place.function not in functions],
            incidents=[each for each in self.incidents if _name_of_step(each) not in functions],
            seen=seen,
            asked=[key for key in self.asked if key.rpartition("::")[2] not in functions],
        )

    @functools.cached_property
    def functions(self) -> dict[str, FunctionRecord]:
        """All functions, decoded once. Raises BadEvidence if one of them is damaged."""
        return {key: self.decode_function(key) for key in self.seen}


_decoder: Final = msgspec.msgpack.Decoder(Record)
_function_decoder: Final = msgspec.msgpack.Decoder(FunctionRecord)


def _name_of_step(incident: Incident) -> str:
    """The name of the function in whose step something happened; empty where it was in none."""
    if incident.step.startswith("file "):
        return ""
    return incident.step.rpartition("::")[2]


def encode_record(record: Record) -> bytes:
    """The bytes of a record, as `decode_record` reads them."""
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes) -> Record:
    """Decode a record, of which each function may still be damaged.

    Raises BadEvidence for damaged bytes and for another version.
    """
    record = decode_untrusted_bytes(_decoder.decode, data)
    if record.version != VERSION:
        raise BadEvidence(f"version {record.version} is not {VERSION}")
    return record


def decode_whole_record(data: bytes) -> Record:
    """Decode a record and its functions. Raises BadEvidence where anything in it is damaged."""
    record = decode_record(data)
    _ = record.functions
    return record
