"""What do grader, nursery and child say to each other? Small fixed messages, one job, and frames of evidence.

The child's frames come from a process in which student code runs: they are decoded with their types checked, are
counted and bounded, and carry a token that only the grader and the child's own code were given.
"""

from __future__ import annotations

import hmac
import struct
from typing import Any, Final

import msgspec

from graders.errors import BadEvidence
from graders.evidence import Evidence, Raised, validated

SPAWN, KILL, READY, EXITED, FAILED = 1, 2, 3, 4, 5
ASKED: Final = struct.Struct("<BQ")  # what the grader asks: the request, and the child's number
TOLD: Final = struct.Struct("<BQiQQ")  # what the nursery tells: the event, number, wait status, KiB at most, µs of CPU
HEAD: Final = struct.Struct("<I")
TOKEN: Final = 16
LARGEST_FRAME: Final = 16 << 20


class Job(msgspec.Struct, frozen=True):
    """One submission, as the child gets it: its files, and seeds of scenarios, but neither reference nor secret."""

    token: bytes
    day: str
    bench: str
    files: dict[str, bytes]
    seeds: dict[str, int]  # by "exercise::function::probe"
    skip: frozenset[str]  # "exercise::function", or "file PATH": what is known already, or has ended a child before
    seconds: float  # for each function
    memory: int  # bytes more than the child begins with
    scratch: int  # bytes
    only: frozenset[str] = frozenset()


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """The layers that hold, before any student code has been read."""

    layers: dict[str, str]


class Chosen(msgspec.Struct, frozen=True, tag="chosen"):
    """Which definition of a function is graded."""

    exercise: str
    function: str
    file: str | None
    line: int | None
    cell: int | None
    note: str = ""


class Began(msgspec.Struct, frozen=True, tag="began"):
    """What is being done now; if nothing follows, this is where it ended."""

    step: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A file has run: where its names are bound, and why it ended early, if it did."""

    file: str
    seconds: float
    lines: dict[str, int]
    cells: list[int]  # of a notebook: the line at which each code cell begins
    broken: Raised | None = None


class Saw(msgspec.Struct, frozen=True, tag="saw"):
    """The evidence of one function."""

    evidence: Evidence
    seconds: float
    signature: str = ""


class Tampered(msgspec.Struct, frozen=True, tag="tampered"):
    """Something of the grader's, or of Python's that it relies on, is not what it was before student code ran."""

    what: str


class Stumbled(msgspec.Struct, frozen=True, tag="stumbled"):
    """The grader's own code in the child could not go on."""

    why: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    pass


Frame = Fenced | Chosen | Began | Loaded | Saw | Tampered | Stumbled | Finished

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_jobs: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)


def encode_job(job: Job) -> bytes:
    return _encoder.encode(job)


def decode_job(data: bytes) -> Job:
    return _jobs.decode(data)


def encode_frame(frame: Frame, token: bytes) -> bytes:
    body = _encoder.encode(frame)
    return HEAD.pack(len(body)) + token + body


class Frames:
    """The frames in a stream of bytes; once something is wrong with it, nothing more is believed."""

    def __init__(self, token: bytes, largest: int) -> None:
        self.token, self.left = token, largest
        self.problem: str | None = None
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        if self.problem is not None:
            return []
        self.left -= len(data)
        if self.left < 0:
            self.problem = "it sent more evidence than there can be"
            return []
        self._bytes += data
        found: list[Frame] = []
        while len(self._bytes) >= HEAD.size:
            (size,) = HEAD.unpack_from(self._bytes)
            if size > LARGEST_FRAME:
                self.problem = "something else than the grader's code wrote to the evidence pipe"
                break
            end = HEAD.size + TOKEN + size
            if len(self._bytes) < end:
                break
            token, body = bytes(self._bytes[HEAD.size : HEAD.size + TOKEN]), bytes(self._bytes[end - size : end])
            del self._bytes[:end]
            try:
                if not hmac.compare_digest(token, self.token):
                    raise BadEvidence("something else than the grader's code wrote to the evidence pipe")
                found.append(_checked(_decoder.decode(body)))
            except (msgspec.DecodeError, RecursionError, BadEvidence) as error:
                self.problem = str(error)
                break
        return found


def _checked(frame: Any) -> Frame:
    if isinstance(frame, Saw):
        return msgspec.structs.replace(frame, evidence=validated(frame.evidence))
    result: Frame = frame
    return result
