"""Messages between grader, fork server and child."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Annotated, Any, Final

import msgspec
from virtual_cuda.ledger import MOST_CALLS, Timeline

from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import Evidence, Observation, Raised, checked_timeline, validated

SPAWN, KILL, READY, EXITED, FAILED, TOO_HEAVY, TOO_HEAVY_THERE = 1, 2, 3, 4, 5, 6, 7  # there: on the GPU
# What the grader asks: the request, the child's number, and its bytes at most, of the host and of a GPU.
ASKED: Final = struct.Struct("<BQQQ")
# What the nursery tells: the event, number, wait status, KiB at most, µs of CPU, KiB of the GPU at most.
TOLD: Final = struct.Struct("<BQiQQQ")
HEAD: Final = struct.Struct("<I")
NUMBER: Final = struct.Struct("<Q")
TOKEN: Final = 16
LARGEST_FRAME: Final = 16 << 20
MESSAGE: Final = 2000  # characters of a text that a child made
# Which machines a child is to be: the one it runs on, or those that a process with a real GPU cannot be.
ALL, HERE, ELSEWHERE = "all", "here", "elsewhere"
STRANGER: Final = "something else than the grader's code wrote to the evidence pipe"


class Job(msgspec.Struct, frozen=True):
    """One submission, as the child gets it: its files, and seeds of scenarios, but neither reference nor secret."""

    token: bytes  # signs frames; the child gives it away before it reads a line of student code
    day: str
    bench: str
    files: dict[str, bytes]
    seeds: dict[str, int]  # by "exercise::function::probe"
    skip: frozenset[str]  # "exercise::function", or "file PATH": what is known already, or has ended a child before
    seconds: float  # for each function
    memory: int  # bytes more than the child begins with
    scratch: int  # bytes
    only: frozenset[str] = frozenset()
    drawn_with: int | None = None  # of a reference: the seed of a second run, which is drawn without its lines
    machines: str = ALL
    gpu_memory: int = 0  # bytes of a real GPU that torch may take
    done: frozenset[str] = frozenset()  # "exercise::function::probe": what another child has seen of a function

    @property
    def on_gpu(self) -> bool:
        """Whether the child is given the real one."""
        return self.bench == "cuda" and self.machines != ELSEWHERE


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
    interrupted: bool = False  # by the time limit, perhaps in the middle of something of ours
    timeline: Timeline | None = None  # of its busiest call: to be looked at, and never judged
    timelines: Annotated[list[Timeline], msgspec.Meta(max_length=MOST_CALLS)] = []  # of a reference: of every call
    spent: bool = False  # the GPU is lost to this process: what is not in the evidence is for another one to see


class Glimpse(msgspec.Struct, frozen=True):
    """What one probe saw, on its way within the child: from here on it is out of reach of what runs later."""

    probe: str
    seen: Observation


class Tampered(msgspec.Struct, frozen=True, tag="tampered"):
    """Something of the grader's, or of Python's that it relies on, is not what it was before student code ran."""

    what: str


class Stumbled(msgspec.Struct, frozen=True, tag="stumbled"):
    """The grader's own code in the child could not go on."""

    why: str


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """This child ends here and another one is to go on: after a time limit nothing is sure to have been put back."""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    pass


Frame = Fenced | Chosen | Began | Loaded | Saw | Tampered | Stumbled | Paused | Finished

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_jobs: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)


def encode_job(job: Job) -> bytes:
    return _encoder.encode(job)


def decode_job(data: bytes) -> Job:
    return _jobs.decode(data)


def encoder() -> msgspec.msgpack.Encoder:
    """One of its own for whoever sends."""
    return msgspec.msgpack.Encoder()


def encode_frame(frame: Frame, key: bytes, number: int) -> bytes:
    """The n-th frame of a child, from 0."""
    body = _encoder.encode(frame)
    return HEAD.pack(len(body)) + signature(key, number, body) + body


def signature(key: bytes, number: int, body: bytes) -> bytes:
    return hashlib.blake2b(NUMBER.pack(number) + body, key=key, digest_size=TOKEN).digest()


class Frames:
    """The frames in a stream of bytes; once something is wrong with it, nothing more is believed."""

    def __init__(self, key: bytes, largest: int) -> None:
        self.key, self.left = key, largest
        self.count = 0
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
                self.problem = STRANGER
                break
            end = HEAD.size + TOKEN + size
            if len(self._bytes) < end:
                break
            signed, body = bytes(self._bytes[HEAD.size : HEAD.size + TOKEN]), bytes(self._bytes[end - size : end])
            del self._bytes[:end]
            try:
                if not hmac.compare_digest(signed, signature(self.key, self.count, body)):
                    self.problem = STRANGER
                    break
                self.count += 1
                found.append(_checked(_decoder.decode(body)))
            except (msgspec.DecodeError, RecursionError, BadEvidence) as error:
                self.problem = str(error)
                break
        return found


def _checked(frame: Any) -> Frame:
    if isinstance(frame, Saw):
        drawn = None if frame.timeline is None else checked_timeline(frame.timeline)
        every = [checked_timeline(timeline) for timeline in frame.timelines]
        return msgspec.structs.replace(frame, evidence=validated(frame.evidence), timeline=drawn, timelines=every)
    result: Frame = frame
    return result
