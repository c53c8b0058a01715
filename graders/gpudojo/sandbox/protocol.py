"""Messages between grader, fork server and child."""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import IntEnum
from typing import Annotated, Final

import msgspec
from virtual_cuda.ledger import MOST_CALLS, Timeline

from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import (
    Evidence,
    Raised,
    check_evidence,
    decode_untrusted_bytes,
    require_valid_timeline,
)
from gpudojo.sandbox.sealed_facts import SealedFacts
from gpudojo.sandbox.tampering.findings import LONGEST_TEXT, FindingKind

# Requests to the fork server, and its events.
Request = IntEnum("Request", "SPAWN KILL")
Event = IntEnum("Event", "READY EXITED FAILED OVER_MEMORY OVER_GPU_MEMORY WAITED")
# Request, number of the child, its limits in bytes: of the host and of a GPU; a number for its
# seeds, which is another one where they are not those of the child before.
REQUEST: Final = struct.Struct("<BQQQQ")
# Event, number of the child, exit code, peak KiB, µs of CPU (or waited for a CPU), peak KiB of the
# GPU.
EVENT: Final = struct.Struct("<BQiQQQ")
# Of a frame: the size of its body, and its number, which is signed with it.
HEAD: Final = struct.Struct("<I")
NUMBER: Final = struct.Struct("<Q")
TOKEN: Final = 16  # bytes of the key that signs frames, and of a signature
LARGEST_FRAME: Final = 8 << 20  # bytes
MOST_FRAMES: Final = 5000  # of one child; a day with thirty functions takes some hundred
WHOLE: Final = 6  # times the limit of a function: what a whole submission may take
MESSAGE: Final = 2000  # characters of a text from a child
# Which machines a child observes: the one it runs on, or those that a process with a real GPU
# cannot stand for.
ALL = "all"
HERE = "here"
ELSEWHERE = "elsewhere"
# Of a student's calls of a function the busiest is drawn; of a reference's none, or every one on
# the public seed.
NONE = "none"
BUSIEST = "busiest"
EVERY = "every"
STRANGER: Final = "something other than the grader's code wrote to the evidence pipe"


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How submissions are run: the same for all of a class, on this machine or on a cluster."""

    day: str
    bench: str
    seeds: dict[str, int]  # by "exercise::function::probe"
    known: frozenset[str]  # every "exercise::function" that is graded
    seconds: float = 10.0  # for each function
    memory: int = 2 << 30  # bytes more than a child starts with
    scratch: int = 64 << 20  # bytes
    only: frozenset[str] = frozenset()  # functions; empty: all of the day
    drawn: str = BUSIEST  # of which calls there are timelines
    gpu_memory: int = 2 << 30  # bytes of a real GPU that torch may take


class Job(RunOptions, frozen=True, kw_only=True):
    """What one child is to do with a submission. It holds neither the reference nor the secret."""

    token: bytes  # signs frames
    files: dict[str, bytes]
    skip: frozenset[
        str
    ]  # "exercise::function" or "file PATH": known already, or it ended a child before
    machines: str = ALL
    done: frozenset[str] = frozenset()  # "exercise::function::probe": observed by an earlier child

    @property
    def on_gpu(self) -> bool:
        """Whether the child is given the real GPU."""
        return self.bench == "cuda" and self.machines != ELSEWHERE


class Seeds(msgspec.Struct, frozen=True):
    """What the fork server reads of a job."""

    day: str
    seeds: dict[str, int]


class Isolated(msgspec.Struct, frozen=True, tag="isolated"):
    """The layers of isolation, sent before any student code is read."""

    layers: dict[str, str]


class Chosen(msgspec.Struct, frozen=True, tag="chosen"):
    """Which definition of a function is graded."""

    exercise: str
    function: str
    file: str | None
    line: int | None
    cell: int | None
    note: str = ""
    versions: tuple[str, ...] = ()  # other versions of its file, which have work in them, too


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The step that begins now; if nothing follows, the child ended in it."""

    step: str


class Found(msgspec.Struct, frozen=True, tag="found"):
    """What student code did that somebody should know: sent at once."""

    kind: FindingKind
    what: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
    file: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
    line: int | None


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A file has run: the lines of its names, and its error, if any."""

    file: str
    seconds: float
    lines: dict[str, int]
    cells: list[int]  # of a notebook: the first line of each code cell
    broken: Raised | None = None


class Fact(msgspec.Struct, frozen=True, tag="fact"):
    """Facts that leave a child before student code runs again; see `gpudojo.grading.sealing`."""

    number: int
    probe: str
    run: int
    facts: bytes


class Saw(msgspec.Struct, frozen=True, tag="saw"):
    """The evidence of one function."""

    evidence: Evidence
    seconds: float
    signature: str = ""
    interrupted: bool = False  # by the time limit, perhaps within our own code
    timeline: Timeline | None = None  # of its busiest call: for reports, never judged
    timelines: Annotated[
        list[Timeline], msgspec.Meta(max_length=MOST_CALLS)
    ] = []  # of a reference: of every call
    spent: bool = False  # the GPU is lost to this process: another child observes the rest


class Stumbled(msgspec.Struct, frozen=True, tag="stumbled"):
    """The grader's own code in the child failed."""

    why: str


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """This child ends, and another one is to continue.

    A time limit may have interrupted code that restores things.
    """


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Every function has been observed."""


Frame = Isolated | Chosen | Began | Loaded | Fact | Saw | Found | Stumbled | Paused | Finished

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame, key: bytes, number: int) -> bytes:
    """The bytes of the n-th frame of a child, from 0: its size, its signature and its body."""
    body = _encoder.encode(frame)
    return HEAD.pack(len(body)) + signature(key, number, body) + body


def signature(key: bytes, number: int, body: bytes) -> bytes:
    """The signature of the n-th frame of a child."""
    signed = hashlib.blake2b(NUMBER.pack(number), key=key, digest_size=TOKEN)
    signed.update(body)
    return signed.digest()


class Frames:
    """Decodes a stream of frames. After the first problem nothing more is accepted."""

    def __init__(self, key: bytes, largest: int) -> None:
        """Frames are signed by `key`, and have at most `largest` bytes together."""
        self.key = key
        self.left = largest
        self.count = 0
        self.problem: str | None = None
        self.too_much = False  # no more than that is wrong with it
        self._bytes = bytearray()  # of a frame that is not whole yet
        self._sealed = SealedFacts()  # of the function that is being observed

    def feed(self, data: bytes) -> list[Frame]:
        """Take in bytes and return the frames that they complete, in order.

        Facts are no frames of their own here: they are in the evidence that they belong to. Sets
        `problem` if a frame is bad or there are too many bytes or frames; from then on the list is
        empty.
        """
        if self.problem is not None:
            return []
        self.left -= len(data)
        if self.left < 0 or self.count > MOST_FRAMES:
            self.problem = "it sent more evidence than there can be"
            self.too_much = True
            return []
        self._bytes += data
        frames: list[Frame] = []
        try:
            body = self._next_body()
            while body is not None:
                frame = _decode_frame(body, self._sealed)
                if not isinstance(frame, Fact):
                    frames.append(frame)
                body = self._next_body()
        except BadEvidence as error:
            self.problem = str(error)
        except _BadSignature:
            self.problem = STRANGER
        return frames

    def _next_body(self) -> bytes | None:
        """Take the body of the next whole frame out of the bytes. Returns None where there is none.

        Raises _BadSignature for one that is too large or signed by another key or number.
        """
        if len(self._bytes) < HEAD.size:
            return None
        (size,) = HEAD.unpack_from(self._bytes)
        if size > LARGEST_FRAME:
            raise _BadSignature
        start = HEAD.size + TOKEN
        end = start + size
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as view:
            signed = bytes(view[HEAD.size : start])
            body = bytes(view[start:end])
        del self._bytes[:end]
        if not hmac.compare_digest(signed, signature(self.key, self.count, body)):
            raise _BadSignature
        self.count += 1
        return body


class _BadSignature(Exception):
    """What arrived was not sent by the grader's own code in the child."""


def _decode_frame(body: bytes, sealed: SealedFacts) -> Frame:
    """Decode a frame and check what types do not tell. Raises BadEvidence.

    Facts are kept in `sealed`, and put into the evidence of their function when it comes.
    """
    frame = decode_untrusted_bytes(_decoder.decode, body)
    if isinstance(frame, Fact):
        sealed.add(frame.number, frame.probe, frame.run, frame.facts)
    elif isinstance(frame, Began):
        sealed.clear()
    elif isinstance(frame, Saw):
        sealed.put_into(frame.evidence)
        check_evidence(frame.evidence)
        for timeline in frame.timelines:
            require_valid_timeline(timeline)
        if frame.timeline is not None:
            require_valid_timeline(frame.timeline)
    return frame
