"""Evidence: what a student's function did, as plain typed data, and its encoding.

A probe describes what it saw as structs. `plain_facts` makes plain data of them, which travels as
msgpack; `convert_facts` makes structs of it again. In between it was in a process that ran student
code: whoever decodes it checks its size, its types and its version, and raises BadEvidence.
"""

from __future__ import annotations

import enum
import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

import msgspec
from virtual_cuda.errors import BadTimeline
from virtual_cuda.hooks import ITEM_SIZES
from virtual_cuda.ledger import Timeline, check_timeline

from gpudojo.model.errors import BadEvidence, printable_text, suggest_name

EVIDENCE_VERSION: Final = 1
LARGEST: Final = 16 << 20  # bytes of one function's evidence
LARGEST_OBSERVATION: Final = 1 << 20  # bytes; five times the largest of a reference
DEEPEST: Final = 16  # levels of facts
# Lists, mappings and arrays of one function; those of a reference have a thousand.
MOST_FACTS: Final = 50_000
DIMENSIONS: Final = 64  # of an array: as many as NumPy has
# The dtypes of arrays that probes send: NumPy has no bfloat16.
ARRAY_DTYPES: Final = ITEM_SIZES.keys() - {"bfloat16"}
LONGEST_SHORT: Final = 200  # characters of a message in one line
NO_MEMORY: Final = ("can't allocate memory", "DefaultCPUAllocator")

T = TypeVar("T")
C = TypeVar("C", bound="Case")


class Array(msgspec.Struct, frozen=True, tag="array"):
    """Values of a tensor or array: the bytes are in row-major order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


# None, bool, int, float, str, Array, and lists and mappings by text of these: see `check_evidence`.
Fact = Any
PLAIN: Final = frozenset({type(None), bool, int, float, str})
LEAVES: Final = PLAIN | {Array}
TEXTS: Final = frozenset({str})
# The code of a msgpack extension: the number of facts that have left a child earlier.
SEALED: Final = 7


class CallStatus(enum.StrEnum):
    """How a probe ended."""

    RETURNED = "returned"
    RAISED = "raised"
    TODO = "to do"
    MISSING = "missing"  # the file defines no such function
    BROKEN = "broken"  # the file itself could not be run


class Raised(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception that the student's function raised, at the student's own line."""

    type: str
    message: str
    line: int | None
    scenario: str = ""  # in which it was raised, where a probe has several
    # Tensors that were copied just before, by name, and the lines that did it.
    copied: dict[str, int | None] = {}
    # file:line of the author's code: that could not use what the student's function did, or whose
    # call of the function does not fit.
    source: str = ""
    # The argument of a loss of torch that was on the CPU, the other one on a GPU: where the loss
    # raised, and its message does not say which.
    on_cpu: str = ""

    @property
    def short(self) -> str:
        """Type and message in one line."""
        if not self.message:
            return self.type
        first_line = self.message.splitlines()[0]
        first_line = first_line.removesuffix(", but expected one of:")
        if len(first_line) > LONGEST_SHORT:
            first_line = f"{first_line[:LONGEST_SHORT].rstrip()} …"
        if first_line:
            return f"{self.type}: {first_line}"
        return self.type

    @property
    def out_of_memory(self) -> bool:
        """True if memory ran out, of the host or of a GPU.

        For the host's memory torch raises a RuntimeError.
        """
        if self.type.endswith("MemoryError"):
            return True
        return any(text in self.message for text in NO_MEMORY)


class Case(msgspec.Struct, frozen=True):
    """What was seen in one scenario. Each exercise declares its own as a subclass."""


class MissingEvidence(KeyError):
    """What a check asked for was not recorded: a probe or a scenario of that name."""

    def __str__(self) -> str:
        """The sentence itself; a KeyError would quote it."""
        return str(self.args[0])


class ScenarioRaised(KeyError):
    """What a check asked for is not there, because the student's function raised.

    It costs the points of that check.
    """

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.short)
        self.raised = raised


@dataclass
class LastAsked:
    """What a check asked for last: a failure shows lines that these calls executed."""

    anything: bool = False  # whether it has asked for anything
    probe: str | None = None  # None for any
    scenario: str | None = None  # None for all of the probe

    def note(self, probe: str | None, scenario: str | None = None) -> None:
        """Note that a check asked for this probe, or for one scenario of it."""
        self.anything = True
        self.probe = probe
        self.scenario = scenario

    def forget(self) -> None:
        """Forget what was asked."""
        self.anything = False


class Cases(dict[str, T], Generic[T]):
    """What was seen in each scenario, by name.

    `errors` has the scenarios in which the student's function raised; to ask for one of these by
    `[…]` raises ScenarioRaised. Each case that is asked for is noted, so that a failure can show
    the lines that its calls executed.
    """

    def __init__(
        self,
        cases: Mapping[str, T] | Iterable[tuple[str, T]] = (),
        errors: Mapping[str, Raised] = {},
    ) -> None:
        """Keep the facts of scenarios, and the errors of others, by name."""
        super().__init__(cases)
        self.errors = dict(errors)
        self.probe: str = ""  # whose scenarios they are
        self.asked: LastAsked | None = None  # where it is noted which case was asked for
        self._added: list[Cases[T]] = []

    def __getitem__(self, name: str) -> T:
        """The facts of a scenario, which is noted as asked for.

        Raises ScenarioRaised or MissingEvidence.
        """
        self._note_question(name)
        return dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The facts of a scenario, which is noted as asked for; else the default.

        Raises nothing.
        """
        self._note_question(name)
        return super().get(name, default)

    def items(self) -> Iterator[tuple[str, T]]:  # type: ignore[override]
        """Each scenario with its facts; each is noted when it comes."""
        return ((name, self[name]) for name in self)

    def values(self) -> Iterator[T]:  # type: ignore[override]
        """The facts of each scenario; each is noted when it comes."""
        return (self[name] for name in self)

    def _note_question(self, name: str) -> None:
        """Note that a check asked for a case, here and in the cases that these were made of."""
        if self.asked is not None:
            self.asked.note(self.probe, name)
        for cases in self._added:
            if name in cases or name in cases.errors:
                cases._note_question(name)

    def __missing__(self, name: str) -> T:
        """Raises ScenarioRaised for a scenario that ended with an error, else MissingEvidence."""
        if name in self.errors:
            raise ScenarioRaised(self.errors[name])
        hint = suggest_name(str(name), [*self, *self.errors])
        raise MissingEvidence(f"there is no scenario {name!r}{hint}")

    def add(self, other: Cases[T]) -> Cases[T]:
        """Take over the scenarios of another probe or part of one, and return these cases.

        What is asked for here is noted in the other ones, too.
        """
        dict.update(self, other)
        self.errors.update(other.errors)
        self._added.append(other)
        return self


class Race(Case, frozen=True):
    """What a student's function and a slow loop returned, and their fastest times.

    The times are those of this machine, for information.
    """

    student: float  # seconds
    loop: float
    rounds: int = 0
    outputs: list[Array | None] = []  # of the student's function, one for each round
    loop_outputs: list[Array | None] = []
    raised: Raised | None = None

    @property
    def speedup(self) -> float:
        """How many times as fast as the loop it was; NaN where nothing was measured."""
        if min(self.student, self.loop) <= 0:
            return float("nan")
        return self.loop / self.student


class Modelled(Case, frozen=True):
    """Modelled seconds of a student's function and of a slow loop, and the result."""

    student: float
    loop: float
    output: Array | None = None
    raised: Raised | None = None


class MemoryCurve(Case, frozen=True):
    """The bytes in use after each record of a forward and a backward pass."""

    bytes: list[int]
    backward: int  # the place in `bytes` where the backward pass begins
    peak: int


# Facts


def plain_facts(value: Any) -> Any:
    """Make plain data of what a probe returned: structs become dicts, tuples lists; arrays stay.

    Values that stay as they are get no call of their own: every submission pays for this.
    """
    if isinstance(value, (list, tuple)):
        if LEAVES.issuperset(map(type, value)):
            return list(value)
        return [each if type(each) in LEAVES else plain_facts(each) for each in value]
    if isinstance(value, msgspec.Struct) and type(value) is not Array:
        names = type(value).__struct_encode_fields__
        values = msgspec.structs.astuple(value)
        return _plain_mapping(zip(names, values, strict=True))
    if isinstance(value, Cases):
        facts = _plain_mapping(dict.items(value))
        for name, raised in value.errors.items():
            facts[name] = {"raised": plain_facts(raised)}
        return facts
    if isinstance(value, dict):
        return _plain_mapping(value.items())
    return value


def _plain_mapping(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of the items, with plain data for values."""
    facts = {}
    for name, value in items:
        if type(value) not in LEAVES:
            value = plain_facts(value)
        facts[name] = value
    return facts


def convert_facts(facts: Any, kind: Any) -> Any:
    """Make of plain facts what a probe is declared to return: a struct, Cases, or a dict of Cases.

    Raises BadEvidence where they do not fit: they are untrusted.
    """
    origin = get_origin(kind)
    if origin is Cases and isinstance(facts, dict):
        return _convert_cases(facts, get_args(kind)[0])
    if origin is dict and isinstance(facts, dict):
        kind_of_values = get_args(kind)[1]
        if get_origin(kind_of_values) is Cases:
            return {name: convert_facts(fact, kind_of_values) for name, fact in facts.items()}
    try:
        return msgspec.convert(facts, dict if origin is Cases else kind)
    except msgspec.ValidationError as error:
        name = getattr(kind, "__name__", str(kind))
        raise BadEvidence(f"{error} of `{name}`") from None


def _convert_cases(facts: dict[str, Any], kind: Any) -> Cases[Any]:
    """Make Cases of the facts of each scenario, or of the error that the student's function raised.

    `kind` is the type of the facts of a scenario. They keep their order: a check names the first of
    them, the same one in every process. Raises BadEvidence where facts do not fit.
    """
    cases: dict[str, Any] = {}
    errors: dict[str, Raised] = {}
    for name, fact in facts.items():
        if isinstance(fact, dict) and "raised" in fact:
            errors[name] = convert_facts(fact["raised"], Raised)
        else:
            cases[name] = convert_facts(fact, kind)
    return Cases(cases, errors)


def struct_or_none(facts: Any, kind: type[C]) -> C | None:
    """Make a struct of facts. Returns None where they do not fit."""
    try:
        return msgspec.convert(facts, kind)
    except msgspec.ValidationError:
        return None


class Observation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one probe saw."""

    status: CallStatus
    facts: dict[str, Fact] = {}
    raised: Raised | None = None
    # By scenario, "" for none: the first and last of lines that were executed one after another.
    executed: dict[str, list[tuple[int, int]]] = {}

    @property
    def timed_out(self) -> bool:
        """True if student code ran out of time, in the probe or when its file was loaded."""
        if self.raised is None:
            return False
        return self.raised.type == "TimedOut"


class Evidence(msgspec.Struct, frozen=True):
    """Everything the probes of one function saw."""

    exercise: str
    function: str
    bench: str
    seed: int
    observations: dict[str, Observation]  # by probe
    version: int = EVIDENCE_VERSION


# Encoding


def encode_evidence(evidence: Evidence) -> bytes:
    """The bytes of evidence, as `decode_evidence` reads them."""
    return msgspec.msgpack.encode(evidence)


_decoder: Final = msgspec.msgpack.Decoder(Evidence)


def decode_evidence(data: bytes) -> Evidence:
    """Decode evidence from an untrusted process, and check all of it. Raises BadEvidence."""
    if len(data) > LARGEST:
        raise BadEvidence(f"{len(data)} bytes are more than {LARGEST}")
    evidence = decode_untrusted_bytes(_decoder.decode, data)
    check_evidence(evidence)
    return evidence


def decode_untrusted_bytes(decode: Callable[[bytes], T], data: bytes) -> T:
    """Call a decoder with bytes from outside. Raises BadEvidence, whatever is wrong with them.

    The garbage collector rests meanwhile.
    """
    collects_garbage = gc.isenabled()
    gc.disable()  # with millions of lists to come, it would look through them again and again
    try:
        return decode(data)
    # Not only msgspec's own errors: UnicodeDecodeError, RecursionError, OverflowError, and
    # MemoryError for a size that the data names.
    except Exception as error:
        message = printable_text(str(error)[:200])
        raise BadEvidence(message or type(error).__name__) from None
    finally:
        if collects_garbage:
            gc.enable()


def check_evidence(evidence: Evidence) -> None:
    """Check version and facts of evidence that was decoded, and put Arrays in place of their data.

    Changes the facts. Raises BadEvidence for another version, and for what is no fact or too much.
    """
    if evidence.version != EVIDENCE_VERSION:
        raise BadEvidence(f"version {evidence.version} is not {EVIDENCE_VERSION}")
    count_down = itertools.count(MOST_FACTS, -1).__next__
    for observation in evidence.observations.values():
        _check_facts(observation.facts, 0, count_down)


def _check_facts(facts: Any, depth: int, count_down: Callable[[], int]) -> None:
    """Check a list or a mapping, and put Arrays in place of their data in it.

    It lies `depth` levels deep. `count_down` tells how many more lists and mappings there may be.
    Raises BadEvidence for anything that is not a fact. Plain values, nearly all there are, get no
    call of their own: judging a class would spend most of its time here.
    """
    if depth > DEEPEST:
        raise BadEvidence("it is nested too deeply")
    if count_down() < 0:
        raise BadEvidence(f"it has more than {MOST_FACTS:,} lists and mappings")
    # Nearly always all values are plain, and nothing is left to do.
    is_mapping = type(facts) is dict
    if is_mapping and not TEXTS.issuperset(map(type, facts)):
        raise BadEvidence("a name that is no text is no fact")
    if is_mapping:
        values = facts.values()
    else:
        values = facts
    if PLAIN.issuperset(map(type, values)):
        return
    for key, value in facts.items() if is_mapping else enumerate(facts):
        kind = type(value)
        if kind in PLAIN:
            continue
        if kind is dict and value.get("type") == "array" and count_down() >= 0:
            facts[key] = _make_array(value)
        elif kind is dict or kind is list:
            _check_facts(value, depth + 1, count_down)
        else:
            raise BadEvidence(f"a {kind.__name__} is no fact")


def _make_array(fact: dict[str, Any]) -> Array:
    """Make an array whose number of bytes fits its shape. Raises BadEvidence for any other."""
    try:
        array = msgspec.convert(fact, Array)
    except msgspec.ValidationError as error:
        raise BadEvidence(str(error)) from None
    if array.dtype not in ARRAY_DTYPES:
        raise BadEvidence(f"an array of {array.dtype[:40]!r} is no fact")
    if len(array.shape) > DIMENSIONS:
        raise BadEvidence(f"an array of {len(array.shape)} dimensions is no fact")
    is_negative = any(length < 0 for length in array.shape)
    size = math.prod(array.shape) * ITEM_SIZES[array.dtype]
    if is_negative or size != len(array.data):
        raise BadEvidence(f"an array of shape {array.shape} has {len(array.data)} bytes")
    return array


def require_valid_timeline(timeline: Timeline) -> Timeline:
    """Return a timeline from an untrusted process if it is well-formed. Raises BadEvidence."""
    try:
        return check_timeline(timeline)
    except BadTimeline as error:
        raise BadEvidence(str(error)) from None
