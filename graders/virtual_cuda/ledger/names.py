"""The names that a ledger can have: kinds of waits, devices, operators, classes of modules.

A question about a name that no ledger can have raises UnknownInLedger. What can be there is judged
by what exists, not by what was recorded. This module is free of torch: what torch has is asked of
functions that the device gives to its ledger.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, Literal, TypeGuard, TypeVar, cast, get_args

from virtual_cuda.device_kinds import DEVICE_TYPES
from virtual_cuda.errors import BadLimit, BadLine, BadMoment, NoRecords, UnknownInLedger
from virtual_cuda.ledger.records import Record, Site
from virtual_cuda.ledger.rows import Direction

Key = TypeVar("Key")
SourceLine = tuple[str, int]  # file and line

# ---- waits ---------------------------------------------------------------------------------------

ImplicitWait = Literal[
    "item", "copy", "tolist", "nonzero", "boolean index", "masked_select", "unique",
    "repeat_interleave", "equal", "allclose", "isin", "bincount", "histc", "fill value", "normal",
    "linalg", "sparse", "segment_reduce", "ctc_loss", "dropout state",
]  # fmt: skip
ExplicitWait = Literal["synchronize", "stream.synchronize", "event.synchronize", "barrier"]
WaitKind = ImplicitWait | ExplicitWait

IMPLICIT_WAITS: Final[tuple[str, ...]] = get_args(ImplicitWait)
EXPLICIT_WAITS: Final[tuple[str, ...]] = get_args(ExplicitWait)
DIRECTIONS: Final[tuple[str, ...]] = get_args(Direction)
AUTOCAST_DTYPES: Final = ("float16", "bfloat16", "float32", "float64")
SCALER_CALLS: Final = ("scale", "unscale_", "step", "update")
# Of the operators of torch that exchange with other ranks.
_NAMESPACES_OF_COLLECTIVES: Final = ("c10d", "_c10d_functional")
# What to ask for instead of operators that torch makes of others, where no similar name tells it.
_PARTS: Final = {
    "conv1d": ("convolution",),
    "conv2d": ("convolution",),
    "conv3d": ("convolution",),
    "cross_entropy_loss": ("_log_softmax", "nll_loss_forward"),
    "item": ("_local_scalar_dense",),
    "linear": ("addmm", "mm"),
    "matmul": ("mm", "bmm", "mv", "dot"),
    "reshape": ("view", "_unsafe_view", "clone"),
    "to": ("_to_copy",),
}

# ---- what one ledger can have --------------------------------------------------------------------


def _nothing() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Vocabulary:
    """What the records of one ledger can name, besides what is the same for all of them.

    An empty answer means that it is not known: every name is then taken for a known one.
    """

    devices: tuple[str, ...] = ()
    """The devices that were opened: "cuda:0"."""
    operators: Callable[[], Collection[str]] = _nothing
    """All operators of torch, by their full names: "aten.add.Tensor"."""
    made_of_others: Callable[[], Collection[str]] = _nothing
    """Those of them that torch makes of others, so that no ledger has them: "aten.to.dtype"."""
    modules: Callable[[], Collection[str]] = _nothing
    """The names of all classes of modules."""
    has_waits_of_operators: bool = False
    """Whether a wait may have the name of any operator, as on a real GPU, which tells no kind."""


ANYTHING: Final = Vocabulary()


def vocabulary_of(records: Sequence[Record]) -> Vocabulary:
    """What records can name; of records that are no part of a ledger, nothing is known."""
    found = getattr(records, "vocabulary", ANYTHING)
    assert isinstance(found, Vocabulary)
    return found


class LedgerPart(tuple[Record, ...]):
    """Some records of a ledger, in order, with the vocabulary of the whole."""

    vocabulary: Vocabulary
    whole: Sequence[Record] | None
    """The records of the whole ledger; None where they are not known."""

    def __new__(cls, records: Iterable[Record], of: Sequence[Record]) -> LedgerPart:
        """Make a part of these records; `of` is the ledger, or the part, that they are from."""
        part = super().__new__(cls, records)
        part.vocabulary = vocabulary_of(of)
        part.whole = getattr(of, "whole", None)
        return part


class StrictCounts(Counter[Key]):
    """Counts by a name, which raise UnknownInLedger for a name that can never be counted."""

    require: Callable[[Key], object] | None = None

    def __missing__(self, key: Key) -> int:
        self._require(key)
        return 0

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        if not found:
            self._require(key)
        return found

    def get(self, key: Key, default: Any = None) -> Any:
        """The count of a name, or the default; raises UnknownInLedger as `[]` does."""
        if key in self:
            return self[key]
        return default

    def _require(self, key: Any) -> None:
        """Raise UnknownInLedger for a name that can never be counted."""
        if self.require is not None:
            self.require(key)


def counts_of(
    names: Iterable[Key] | Mapping[Key, int], require: Callable[[Key], object]
) -> StrictCounts[Key]:
    """How often each name occurs; `require` raises UnknownInLedger for one that cannot occur."""
    counts = StrictCounts(names)
    counts.require = require
    return counts


# ---- parts of a ledger ---------------------------------------------------------------------------


def require_records(records: object) -> None:
    """Raise NoRecords for what is no ledger and no sequence of records."""
    if isinstance(records, str) or not isinstance(records, Sequence):
        raise NoRecords(records)
    if not all(isinstance(each, Record) for each in records):
        raise NoRecords(records)


def index_of_moment(records: Sequence[Record], moment: object, earliest: int = 0) -> int:
    """The index in the whole ledger of a record, or of a moment that is an index already.

    Raises BadMoment for all else, for an index outside of the ledger, for one before `earliest`,
    and for a record of another ledger.
    """
    index = moment.index if isinstance(moment, Record) else moment
    whole: Sequence[Record] | None = getattr(records, "whole", None)
    latest = None if whole is None else len(whole)
    if not _is_integer(index) or index < earliest:
        raise BadMoment(moment, earliest, latest)
    if whole is None:
        return index
    if index > len(whole):
        raise BadMoment(moment, earliest, latest)
    if isinstance(moment, Record) and not _is_record_at(whole, index, moment):
        raise BadMoment(moment, earliest, latest)
    return index


def _is_record_at(whole: Sequence[Record], index: int, record: Record) -> bool:
    """True if a whole ledger has this record at an index.

    That of a span may have been read before the span ended.
    """
    if index == len(whole):
        return False
    found = whole[index]
    return type(found) is type(record) and (found.at, found.site) == (record.at, record.site)


def require_at_least(limit: object) -> None:
    """Raise BadLimit for what is no number of records that something can have at least."""
    if not _is_integer(limit) or limit < 1:
        raise BadLimit(limit)


def _is_integer(value: object) -> TypeGuard[int]:
    """True for a whole number; False for a bool, which is an int to Python."""
    return isinstance(value, int) and not isinstance(value, bool)


# ---- devices -------------------------------------------------------------------------------------


def device_label(records: Sequence[Record], device: object, also: tuple[str, ...] = ()) -> str:
    """The ledger's name for a device: an index, a text such as "cuda:0" or "cuda", a torch.device.

    `also` are devices that the question knows besides those that were opened. Raises
    UnknownInLedger for a device that was not opened.
    """
    opened = vocabulary_of(records).devices
    label = _text_of_device(device, opened)
    if opened:
        types = {_type_of(name) for name in opened}
        known = dict.fromkeys([*opened, *sorted(types), *also])
        if label not in known:
            raise UnknownInLedger(device, tuple(known))
        return label
    kind, colon, index = label.partition(":")
    if kind not in DEVICE_TYPES:
        raise UnknownInLedger(device, DEVICE_TYPES)
    if colon and not index.isdigit():
        raise UnknownInLedger(device, DEVICE_TYPES)
    return label


def require_label(records: Sequence[Record], label: str) -> None:
    """Raise UnknownInLedger for what is not the ledger's name for a device: "cuda:0"."""
    opened = vocabulary_of(records).devices
    if opened:
        require_one_of(label, opened)


def _text_of_device(device: object, opened: tuple[str, ...]) -> str:
    """The label of a device that a question names, such as "cuda:1"; there may be none such."""
    if not _is_integer(device):
        return str(device)
    kind = "cuda"
    if opened:
        kind = _type_of(opened[0])
    return f"{kind}:{device}"


def _type_of(device: str) -> str:
    """The type of a device: "cuda" of "cuda:0"."""
    return device.partition(":")[0]


# ---- waits, operators, modules -------------------------------------------------------------------


def require_one_of(name: object, known: Iterable[str]) -> None:
    """Raise UnknownInLedger for a name that is none of these."""
    every = tuple(known)
    if name not in every:
        raise UnknownInLedger(name, every)


def require_wait(records: Sequence[Record], kind: str, explicit: bool = False) -> None:
    """Raise UnknownInLedger for a kind of wait that no device records."""
    known, others, question = IMPLICIT_WAITS, EXPLICIT_WAITS, "explicit_syncs()"
    if explicit:
        known, others, question = EXPLICIT_WAITS, IMPLICIT_WAITS, "syncs()"
    if kind in known:
        return
    if kind in others:
        raise UnknownInLedger(kind, known, f"ask {question} for that kind")
    vocabulary = vocabulary_of(records)
    if vocabulary.has_waits_of_operators and not explicit:
        bare = {_base_of(name).strip("_") for name in vocabulary.operators()}
        if kind in bare:
            return
    raise UnknownInLedger(kind, known)


def names_of_operator(name: str) -> set[str]:
    """The names an operator answers to: "aten.add.Tensor", "aten.add", "add"."""
    namespace, _, rest = name.partition(".")
    base = rest.partition(".")[0]
    if not base:  # a name without a namespace
        return {name}
    return {name, f"{namespace}.{base}", base}


def _is_of_torch(name: str) -> bool:
    """True for a full name of one of torch's own operators: "aten.add.Tensor"."""
    return name.startswith("aten.")


def _base_of(name: str) -> str:
    """The name of an operator without namespace and overload: "add" of "aten.add.Tensor"."""
    return name.partition(".")[2].partition(".")[0]


def require_operator(records: Sequence[Record], name: str) -> None:
    """Raise UnknownInLedger for what reaches no device, by any of its names.

    That is what is no operator of torch, and an operator that torch always makes of others.
    """
    vocabulary = vocabulary_of(records)
    every = set(vocabulary.operators())
    if not every:
        return
    made_of_others = set(vocabulary.made_of_others())
    _require_no_parts(name, every, made_of_others)
    known: set[str] = set()
    for full_name in every - made_of_others:
        known |= names_of_operator(full_name)
    if name in known:
        return
    dots = str(name).count(".")
    as_long = {each for each in known if each.count(".") == dots}
    choices = sorted(as_long or known)
    advice = ""
    class_name = str(name).rpartition(".")[2]
    if class_name in vocabulary.modules():
        advice = f"{class_name} is a class of modules: ask forwards({class_name!r})"
    raise UnknownInLedger(name, tuple(choices), advice)


def _require_no_parts(name: str, every: set[str], made_of_others: set[str]) -> None:
    """Raise UnknownInLedger for the name of an operator that torch always makes of others.

    `every` are the full names of all operators, `made_of_others` of those.
    """
    called_so = {each for each in every if name in names_of_operator(each)}
    of_torch = set(filter(_is_of_torch, called_so)) or called_so
    # With `out=` torch may take another way; nobody asks for that by a short name.
    usual = {each for each in of_torch if not each.endswith("out")}
    usual = usual or of_torch
    if not usual or not usual <= made_of_others:
        return
    base = _base_of(next(iter(usual)))
    parts: Iterable[str] = _PARTS.get(base, ())
    if not parts:
        reaching = filter(_is_of_torch, every - made_of_others)
        short = set(map(_base_of, reaching))
        parts = sorted(each for each in short if base in each)
    prefix = "aten." if "." in str(name) else ""
    choices = tuple(f"{prefix}{part}" for part in parts)
    advice = f"torch makes {base} of other operators, and the ledger has those"
    raise UnknownInLedger(name, choices, advice)


def require_full_operator(records: Sequence[Record], name: str) -> None:
    """Raise UnknownInLedger for what is no full name of an operator that reaches a device.

    A full name has an overload: "aten.add.Tensor".
    """
    vocabulary = vocabulary_of(records)
    every = set(vocabulary.operators())
    made_of_others = set(vocabulary.made_of_others())
    if name in made_of_others:
        _require_no_parts(name, every, made_of_others)
    every -= made_of_others
    if not every or name in every:
        return
    of_this_name = {each for each in every if name in names_of_operator(each)}
    choices = sorted(of_this_name or every)
    raise UnknownInLedger(name, tuple(choices))


def same_collective(recorded: str, wanted: str) -> bool:
    """True for two spellings of one collective: "allreduce" and "all_reduce"."""
    return recorded.replace("_", "") == wanted.replace("_", "")


def require_collective(records: Sequence[Record], name: str) -> None:
    """Raise UnknownInLedger for what is no operator of torch that exchanges with other ranks."""
    known = set()
    for full_name in vocabulary_of(records).operators():
        namespace = full_name.partition(".")[0]
        if namespace in _NAMESPACES_OF_COLLECTIVES:
            known.add(_base_of(full_name).strip("_"))
    for each in known:
        if same_collective(each, str(name)):
            return
    if known:
        raise UnknownInLedger(name, tuple(sorted(known)))


def require_module(records: Sequence[Record], name: str) -> None:
    """Raise UnknownInLedger for what is no class of modules."""
    every = vocabulary_of(records).modules()
    if every and name not in every:
        raise UnknownInLedger(name, tuple(sorted(every)))


# ---- lines ---------------------------------------------------------------------------------------


def is_file(recorded: str, wanted: str) -> bool:
    """True if a file of a record is the wanted one: its whole path, or the end of it."""
    recorded = recorded.replace("\\", "/")
    wanted = wanted.replace("\\", "/")
    return recorded == wanted or recorded.endswith(f"/{wanted}")


def require_file(records: Sequence[Record], file: str) -> None:
    """Raise UnknownInLedger for a file that does not exist, and that no record is from."""
    if vocabulary_of(records) is ANYTHING:
        return
    recorded = _files_of(records)
    if os.path.isfile(file) or any(is_file(each, file) for each in recorded):
        return
    raise UnknownInLedger(file, tuple(sorted(recorded)))


def _files_of(records: Sequence[Record]) -> set[str]:
    """The files that records are from."""
    return {site.file for site in _sites_of(records)}


def _sites_of(records: Sequence[Record]) -> Iterator[Site]:
    """Yield where each record is from; nothing for those of which it is not known."""
    for record in records:
        if record.site is not None:
            yield record.site


def require_line(records: Sequence[Record], file: str, line: object) -> None:
    """Raise BadLine for a line that no file of this name has, among those recorded."""
    files = [each for each in _files_of(records) if is_file(each, file)]
    longest = _most_lines(files or [file])
    if not _is_integer(line) or line < 1:
        raise BadLine(line, file, longest)
    if longest and line > longest:
        raise BadLine(line, file, longest)


def _most_lines(files: Iterable[str]) -> int:
    """How many lines the longest of some files has; 0 if one is empty or cannot be read."""
    most = 0
    for file in files:
        count = len(linecache.getlines(file))
        if not count:
            return 0
        most = max(most, count)
    return most


def require_function(records: Sequence[Record], name: str) -> None:
    """Raise UnknownInLedger for the qualified name of a function that no imported module has."""
    if vocabulary_of(records) is ANYTHING or name == "<module>":
        return
    existing = {site.function for site in _sites_of(records)}
    if name in existing:
        return
    top = name.partition(".")[0]  # the name in its module: of "Net.forward", the class
    for module in list(sys.modules.values()):
        value = getattr(module, "__dict__", {}).get(top)
        if value is not None:
            existing.add(top)
            existing.update(_names_of_functions(value))
    require_one_of(name, sorted(existing))


def _names_of_functions(value: object) -> Iterator[str]:
    """The qualified names of a function, of those of a class, and of those inside of them."""
    kind = type(value)  # not `isinstance`: some objects warn when they are asked for their class
    if issubclass(kind, type):
        inside = f"{cast(type, value).__qualname__}."
        for member in list(vars(value).values()):
            qualified_name = getattr(member, "__qualname__", inside)
            if qualified_name.startswith(inside):
                function = getattr(member, "__func__", member)
                yield from _names_of_functions(function)
    elif kind is property:
        yield from _names_of_functions(value.fget)  # type: ignore[attr-defined]
    elif kind is FunctionType:
        function = cast(FunctionType, value)
        yield from _names_of_code(code_of(function) or function.__code__)


def code_of(function: Callable[..., object]) -> CodeType | None:
    """The code of the function that decorators have wrapped, or else of what is around it.

    None for a function without code of Python, such as a built-in one.
    """
    inside = getattr(inspect.unwrap(function), "__code__", None)
    code: CodeType | None = inside or getattr(function, "__code__", None)
    return code


def _names_of_code(code: CodeType) -> Iterator[str]:
    """The qualified names of a function, and of those that are defined in it."""
    yield code.co_qualname
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of_code(constant)
