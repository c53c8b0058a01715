"""Evidence: what a student's function did, as plain typed data, and its encoding."""

from __future__ import annotations

import enum
import functools
import gc
import itertools
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from virtual_cuda.errors import BadTimeline
from virtual_cuda.ledger import Timeline, check_timeline, decode_timeline

from gpudojo.model.errors import BadEvidence, DamagedEvidence, printable_text

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


class Raised(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception that the student's function raised, at the student's own line."""

    type: str
    message: str
    line: int | None
    scenario: str = ""  # in which it was raised, where a probe has several
    copied: dict[
        str, int | None
    ] = {}  # tensors that were copied just before, by name, and the lines that did it
    source: str = (
        ""  # file:line of the author's code that could not use what the student's function did
    )

    @property
    def short(self) -> str:
        """Type and message in one line."""
        first = (
            self.message.splitlines()[0].removesuffix(", but expected one of:")[:200]
            if self.message
            else ""
        )
        return f"{self.type}: {first}" if first else self.type

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out, of the host or of a GPU. For the host's memory torch raises a RuntimeError."""
        return self.type.endswith("MemoryError") or any(said in self.message for said in NO_MEMORY)


T = TypeVar("T")
C = TypeVar("C", bound="Case")


class Case(msgspec.Struct, frozen=True):
    """What was seen in one scenario. Each exercise declares its own as a subclass, beside its probes."""


class ScenarioRaised(KeyError):
    """What a check asked for is not there, because the student's function raised. Costs the points of that check."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.short)
        self.raised = raised


class Cases(dict[str, T], Generic[T]):
    """What was seen in each scenario, by name. `errors` has the scenarios in which the student's function raised;
    to ask for one of these by `[…]` raises ScenarioRaised.
    """

    def __init__(
        self,
        cases: Mapping[str, T] | Iterable[tuple[str, T]] = (),
        errors: Mapping[str, Raised] = {},
    ) -> None:
        super().__init__(cases)
        self.errors = dict(errors)
        # Whose scenarios they are, and where it is noted which of them was asked for last.
        self.probe: str = ""
        self.asked: list[str | None] | None = None
        self._parts: list[Cases[T]] = []

    def __getitem__(self, name: str) -> T:
        if (asked := self.asked) is not None:
            asked[0] = self.probe
            asked[1] = name
        elif self._parts:
            self._tell(name)
        return dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        self._tell(name)
        return super().get(name, default)

    def items(self) -> Iterator[tuple[str, T]]:  # type: ignore[override]
        return ((name, self[name]) for name in self)

    def values(self) -> Iterator[T]:  # type: ignore[override]
        return (self[name] for name in self)

    def _tell(self, name: str) -> None:
        if (asked := self.asked) is not None:
            asked[0] = self.probe
            asked[1] = name
        for part in self._parts:
            if name in part or name in part.errors:
                part._tell(name)

    def __missing__(self, name: str) -> T:
        raise ScenarioRaised(self.errors[name]) if name in self.errors else KeyError(name)

    def add(self, other: Cases[T]) -> Cases[T]:
        """Take over the scenarios of another probe or part of one."""
        dict.update(self, other)
        self.errors.update(other.errors)
        self._parts.append(other)
        return self


class Race(Case, frozen=True):
    """What a student's function and a slow loop returned, and their fastest times on this machine, for information."""

    student: float  # seconds
    loop: float
    rounds: int = 0
    outputs: list[Array | None] = []  # of the student's function, one for each round
    loop_outputs: list[Array | None] = []
    raised: Raised | None = None

    @property
    def speedup(self) -> float:
        """How many times as fast as the loop it was found to be; NaN where nothing was measured."""
        return self.loop / self.student if min(self.student, self.loop) > 0 else float("nan")


class Modelled(Case, frozen=True):
    """How long a student's function and a slow loop take by the modelled clock, in seconds, and the result."""

    student: float
    loop: float
    output: Array | None = None
    raised: Raised | None = None


class MemoryCurve(Case, frozen=True):
    """The bytes in use after each record of a forward and a backward pass."""

    bytes: list[int]
    backward: int  # the place in `bytes` where the backward pass begins
    peak: int


def as_struct(facts: Any, kind: type[C]) -> C | None:
    """Facts as a struct, or None where they do not fit."""
    try:
        return msgspec.convert(facts, kind)
    except msgspec.ValidationError:
        return None


def plain(value: Any) -> Any:
    """The facts in what a probe returned: structs become dicts, tuples become lists, arrays stay.

    Values that stay as they are get no call of their own: every submission pays for this.
    """
    if isinstance(value, (list, tuple)):
        same = LEAVES.issuperset(map(type, value))
        return (
            list(value)
            if same
            else [each if type(each) in LEAVES else plain(each) for each in value]
        )
    if isinstance(value, msgspec.Struct) and type(value) is not Array:
        encoded = zip(
            type(value).__struct_encode_fields__, msgspec.structs.astuple(value), strict=True
        )
        return {name: each if type(each) in LEAVES else plain(each) for name, each in encoded}
    if isinstance(value, dict):
        found = {
            name: each if type(each) in LEAVES else plain(each) for name, each in value.items()
        }
        return found | {
            name: {"raised": plain(raised)} for name, raised in getattr(value, "errors", {}).items()
        }
    return value


def typed(facts: Any, kind: Any) -> Any:
    """Facts as what a probe is declared to return. Raises BadEvidence where they do not fit: they are untrusted."""
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is Cases and isinstance(facts, dict):
        # In the order of the facts: a check names the first of them, and must name the same one in every process.
        raised = {
            name: fact["raised"]
            for name, fact in facts.items()
            if isinstance(fact, dict) and "raised" in fact
        }
        errors = {name: typed(fact, Raised) for name, fact in raised.items()}
        return Cases(
            {name: typed(fact, inner[0]) for name, fact in facts.items() if name not in raised},
            errors,
        )
    if origin is dict and isinstance(facts, dict) and get_origin(inner[1]) is Cases:
        return {name: typed(fact, inner[1]) for name, fact in facts.items()}
    try:
        return msgspec.convert(facts, dict if origin is Cases else kind)
    except msgspec.ValidationError as error:
        raise BadEvidence(str(error)) from None


class Observation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one probe saw."""

    status: CallStatus
    facts: dict[str, Fact] = {}
    raised: Raised | None = None
    executed: dict[
        str, list[tuple[int, int]]
    ] = {}  # by scenario, "" for none: first and last of lines that were run

    @property
    def timed_out(self) -> bool:
        """Whether student code ran out of time, in the probe or when its file was loaded."""
        return self.raised is not None and self.raised.type == "TimedOut"

    def typed(self, kind: Any) -> Any:
        """The facts as what a probe is declared to return; raises BadEvidence where they do not fit."""
        return typed(self.facts, kind)


class Evidence(msgspec.Struct, frozen=True):
    """Everything the probes of one function saw."""

    exercise: str
    function: str
    bench: str
    seed: int
    observations: dict[str, Observation]
    version: int = EVIDENCE_VERSION


class ObservationOutline(msgspec.Struct, frozen=True):
    """An observation whose facts are not decoded until they are asked for."""

    status: CallStatus
    facts: msgspec.Raw = msgspec.Raw(b"\x80")  # no facts
    raised: Raised | None = None
    executed: dict[str, list[tuple[int, int]]] = {}

    @property
    def timed_out(self) -> bool:
        return self.raised is not None and self.raised.type == "TimedOut"

    def typed(self, kind: Any) -> Any:
        """As that of an observation; raises DamagedEvidence where they are no facts, which was found out before."""
        found = _typed_at_once(self.facts, kind)
        return typed(_facts_in(self.facts), kind) if found is None else found


def _typed_at_once(data: msgspec.Raw, kind: Any) -> Any:
    """The same as by `typed` without lists and mappings in between; None where it may be something else.

    Of what no probe returns, such as an array in the place of a struct, something else may be made: a forger who could
    send that could as well send the other.
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    try:
        if origin is Cases:
            return _cases_at_once(data, inner[0])
        if origin is dict and get_origin(inner[1]) is Cases:
            return {
                name: _cases_at_once(part, *get_args(inner[1]))
                for name, part in _parts.decode(data).items()
            }
        return _decoded_as(data, kind)
    except Exception:  # whatever decoding raises: it is raised again, and told, by the longer way
        return None


def _cases_at_once(data: msgspec.Raw, kind: Any) -> Cases[Any]:
    if RAISED not in bytes(data):
        return Cases(_decoded_as(data, dict[str, kind]))
    cases: Cases[Any] = Cases()
    for name, part in _parts.decode(data).items():
        if RAISED in bytes(part) and "raised" in (fact := _facts_in(part)):
            cases.errors[name] = typed(fact["raised"], Raised)
        else:
            dict.__setitem__(cases, name, _decoded_as(part, kind))
    return cases


def _decoded_as(data: msgspec.Raw, kind: Any) -> Any:
    """Raises BadEvidence for an array where there may be any fact: it is none before it is looked at."""
    decode, anything = _typed_decoder(kind)
    if anything and ARRAY in bytes(data):
        raise BadEvidence("there is an array in it")
    return decode(data)


def prepare(kind: Any) -> None:
    """Make the decoders of what a probe is declared to return: some take milliseconds."""
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is Cases:
        _typed_decoder(dict[str, inner[0]])  # type: ignore[valid-type]
        _typed_decoder(inner[0])
    elif origin is dict and get_origin(inner[1]) is Cases:
        prepare(inner[1])
    else:
        _typed_decoder(kind)


@functools.lru_cache(1000)
def _typed_decoder(kind: Any) -> tuple[Callable[[msgspec.Raw], Any], bool]:
    """Decodes facts of a type; and whether something of it may be any fact."""
    return msgspec.msgpack.Decoder(kind).decode, _holds_any(kind, set())


def _holds_any(kind: Any, known: set[Any]) -> bool:
    """Whether a type has a part that is not known to be something else than any fact."""
    if kind in known or kind is Array:
        return False
    known.add(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return any(_holds_any(field.type, known) for field in msgspec.structs.fields(kind))
    parts = [part for part in get_args(kind) if part is not ...]
    if get_origin(kind) in (dict, list, tuple, Union, types.UnionType) and parts:
        return any(_holds_any(part, known) for part in parts)
    return get_origin(kind) is not Literal and kind not in PLAIN


def _facts_in(data: msgspec.Raw) -> Any:
    try:
        found = decoded(_facts.decode, data)
        _make_whole(found, 0, itertools.count(MOST_FACTS, -1).__next__)
        return found
    except BadEvidence as error:
        raise DamagedEvidence(error.reason) from None


class EvidenceOutline(msgspec.Struct, frozen=True):
    """Evidence whose facts, most of its bytes, are not decoded."""

    exercise: str
    function: str
    bench: str
    seed: int
    observations: dict[str, ObservationOutline]
    version: int = EVIDENCE_VERSION


AnyObservation = Observation | ObservationOutline
AnyEvidence = Evidence | EvidenceOutline


LARGEST: Final = 16 << 20
LARGEST_OBSERVATION: Final = 1 << 20  # five times the largest of a reference
DEEPEST: Final = 16
MOST_FACTS: Final = (
    50_000  # lists, mappings and arrays of one function; those of a reference have a thousand
)
DIMENSIONS: Final = 64  # of an array: as many as NumPy has
_ARRAY: Final = "array"
PLAIN: Final = frozenset({type(None), bool, int, float, str})
LEAVES: Final = PLAIN | {Array}
TEXTS: Final = frozenset({str})
# Bytes of one element of every dtype that probes send.
ELEMENTS: Final = {
    **{"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "int32": 4, "float32": 4},
    **{
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "int64": 8,
        "float64": 8,
        "complex64": 8,
        "complex128": 16,
    },
}


def encode_evidence(evidence: Evidence) -> bytes:
    return msgspec.msgpack.encode(evidence)


def decode_evidence(data: bytes) -> Evidence:
    """The evidence in some bytes from an untrusted process. Raises BadEvidence."""
    if len(data) > LARGEST:
        raise BadEvidence(f"{len(data)} bytes are more than {LARGEST}")
    return validated(decoded(_decoder.decode, data))


def outlined(data: bytes) -> EvidenceOutline:
    """The outline of such evidence, if all of it is well-formed. Raises BadEvidence."""
    outline = decoded(_outline.decode, data)
    decode_evidence(data)
    return outline


_decoder: Final = msgspec.msgpack.Decoder(Evidence)
_outline: Final = msgspec.msgpack.Decoder(EvidenceOutline)
_facts: Final = msgspec.msgpack.Decoder(dict[str, Any])
_parts: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
# What tells that a scenario ended with an error, and what an array has.
RAISED = msgspec.msgpack.encode("raised")
ARRAY = msgspec.msgpack.encode(_ARRAY)


def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """What a decoder makes of bytes from outside. Raises BadEvidence, whatever is wrong with them."""
    collects = gc.isenabled()
    gc.disable()  # with millions of lists to come, it would look through them again and again
    try:
        return decode(data)
    # Not only msgspec's own errors: UnicodeDecodeError, RecursionError, OverflowError, MemoryError for a size it names.
    except Exception as error:
        raise BadEvidence(printable_text(str(error)[:200]) or type(error).__name__) from None
    finally:
        if collects:
            gc.enable()


def validated(evidence: Evidence) -> Evidence:
    """The evidence, after a check of its version and its facts. Raises BadEvidence."""
    if evidence.version != EVIDENCE_VERSION:
        raise BadEvidence(f"version {evidence.version} is not {EVIDENCE_VERSION}")
    left = itertools.count(MOST_FACTS, -1).__next__
    for observation in evidence.observations.values():
        _make_whole(observation.facts, 0, left)
    return evidence


def _make_whole(facts: Any, depth: int, left: Callable[[], int]) -> None:
    """Converts arrays, in place. Raises BadEvidence for anything that is not a fact.

    Plain values, nearly all there are, get no call of their own: judging a class would spend most of its time here.
    """
    if depth > DEEPEST:
        raise BadEvidence("it is nested too deeply")
    if left() < 0:
        raise BadEvidence(f"it has more than {MOST_FACTS:,} lists and mappings")
    named = type(facts) is dict
    if named and not TEXTS.issuperset(map(type, facts)):
        raise BadEvidence("a name that is no text is no fact")
    if PLAIN.issuperset(map(type, facts.values() if named else facts)):
        return
    for key, value in facts.items() if named else enumerate(facts):
        kind = type(value)
        if kind in PLAIN:
            continue
        if kind is dict and value.get("type") == _ARRAY and left() >= 0:
            facts[key] = _array(value)
        elif kind is dict or kind is list:
            _make_whole(value, depth + 1, left)
        else:
            raise BadEvidence(f"a {kind.__name__} is no fact")


def _array(value: dict[str, Any]) -> Array:
    """An array whose number of bytes fits its shape. Raises BadEvidence for any other."""
    try:
        array = msgspec.convert(value, Array)
    except msgspec.ValidationError as error:
        raise BadEvidence(str(error)) from None
    size = ELEMENTS.get(array.dtype)
    if size is None:
        raise BadEvidence(f"an array of {array.dtype[:40]!r} is no fact")
    if len(array.shape) > DIMENSIONS:
        raise BadEvidence(f"an array of {len(array.shape)} dimensions is no fact")
    if any(length < 0 for length in array.shape) or math.prod(array.shape) * size != len(
        array.data
    ):
        raise BadEvidence(f"an array of shape {array.shape} has {len(array.data)} bytes")
    return array


def checked_timeline(timeline: Timeline | bytes) -> Timeline:
    """The timeline, encoded or not, if it is well-formed; raises BadEvidence."""
    try:
        return (
            check_timeline(timeline)
            if isinstance(timeline, Timeline)
            else decode_timeline(timeline)
        )
    except BadTimeline as error:
        raise BadEvidence(str(error)) from None
