"""Budgets of tests: how often the host may wait, and how much may be copied, in use, or spent.

What a test needed is counted in the ledger. What is over a budget is told with the lines that
caused it, the worst first.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from virtual_cuda.clock.lanes import Times
from virtual_cuda.errors import BadBudget, BadSize
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.records import Allocation, Operation, Record, Site, Sync, Transfer
from virtual_cuda.ledger.texts import count_phrase, cut, duration, short_size
from virtual_cuda.sizes import parse_size

_MOST_LINES: Final = 8
_DIRECTIONS: Final = {
    "to_device": "to the device",
    "to_host": "to the host",
    "between_devices": "between devices",
}


class Counts(NamedTuple):
    """What a test needed."""

    syncs: int  # how often the host waited for the device, explicit waits included
    transfer_bytes: int  # copied, in any direction
    memory_bytes: int  # the most that were in use at a time, on the fullest device
    time_ns: int  # modelled, in nanoseconds


class Excess(NamedTuple):
    """One figure of a test that is over its budget."""

    figure: str  # a field of Counts
    needed: int
    allowed: int
    origin: str  # where the budget stands: "max_syncs=1"


class MeasuredTest(NamedTuple):
    """The part of a ledger that a test has written, and its modelled times."""

    ledger: Ledger
    times: Times
    before: dict[str, int]  # bytes in use when the test began, by device

    def counts(self) -> Counts:
        """What the test needed."""
        records = self.ledger.records
        in_use = list(self.before.values())
        for event in _memory_events(records):
            in_use.append(event.live)
        return Counts(
            syncs=sum(isinstance(record, Sync) for record in records),
            transfer_bytes=sum(copy.bytes for copy in self.ledger.transfers()),
            memory_bytes=max(in_use, default=0),
            time_ns=_to_nanoseconds(self.times.seconds),
        )


def _to_nanoseconds(seconds: float) -> int:
    """A time in whole nanoseconds."""
    return round(seconds * 1e9)


# ---- budgets that a marker gives -----------------------------------------------------------------

# The sign for micro is on keyboards as U+00B5, and as the Greek letter U+03BC.
_NANOSECONDS: Final = {
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "\N{MICRO SIGN}s": 10**3,
    "\N{GREEK SMALL LETTER MU}s": 10**3,
    "ns": 1,
}
_TIME: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_NANOSECONDS)})", re.ASCII)
_NO_BYTES: Final = re.compile(r"0+(\.0+)?\s*(bytes?|[kmgt]?i?b)", re.ASCII | re.IGNORECASE)


def _parse_count(value: object) -> int:
    """A whole number of at least 0; raises BadBudget for all else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadBudget(value, "a whole number, 0 or more")
    return value


def _parse_bytes(value: object) -> int:
    """A size in bytes, which may be 0; raises BadBudget for what is no size."""
    if _is_zero(value) or (isinstance(value, str) and _NO_BYTES.fullmatch(value.strip())):
        return 0
    try:
        return parse_size(value)  # type: ignore[arg-type]
    except BadSize:
        raise BadBudget(value, 'a size such as "200 MiB"') from None


def _parse_time(value: object) -> int:
    """A time in nanoseconds, of a text with a unit; raises BadBudget for what is no time.

    A number without a unit is none: 5 is as likely meant to be milliseconds as seconds.
    """
    if _is_zero(value):
        return 0
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise BadBudget(value, 'a time such as "5 ms"')
    return round(float(match[1]) * _NANOSECONDS[match[2]])


def _is_zero(value: object) -> bool:
    """True for the number 0, which needs no unit; False for False."""
    return value == 0 and not isinstance(value, bool)


# By the name of the option: the field of Counts, and what reads the option.
_OPTIONS: Final[dict[str, tuple[str, Callable[[object], int]]]] = {
    "max_syncs": ("syncs", _parse_count),
    "max_transfers": ("transfer_bytes", _parse_bytes),
    "max_memory": ("memory_bytes", _parse_bytes),
    "max_time": ("time_ns", _parse_time),
}


def over_options(counts: Counts, options: Mapping[str, object]) -> list[Excess]:
    """What is over the budget of a marker, whose options are `max_syncs` and so on.

    Raises BadBudget for a value that is none.
    """
    found = []
    for name, value in options.items():
        figure, parse = _OPTIONS[name]
        allowed = parse(value)
        needed = getattr(counts, figure)
        if needed > allowed:
            found.append(Excess(figure, needed, allowed, f"{name}={value!r}"))
    return found


def require_budgets(options: Mapping[str, object]) -> None:
    """Raise BadBudget for an option whose value is no budget."""
    over_options(Counts(0, 0, 0, 0), options)


# ---- what is told of it --------------------------------------------------------------------------


def text_of(figure: str, value: int) -> str:
    """A figure with its unit: "3 times", "1.5 MiB", "12.3 ms"."""
    if figure == "syncs":
        return count_phrase(value, "time")
    if figure == "time_ns":
        return duration(value)
    return short_size(value)


def describe(excess: Excess, measured: MeasuredTest, folder: str) -> str:
    """What is over a budget: a sentence, and the lines that caused it, the worst first.

    Files in `folder` are named from there.
    """
    needed = text_of(excess.figure, excess.needed)
    sentences = {
        "syncs": f"The host waited for the GPU {needed}",
        "transfer_bytes": f"{needed} were copied between host and GPU",
        "memory_bytes": f"{needed} of the GPU's memory were in use at a time",
        "time_ns": f"It takes {needed} on {measured.times.label}, modelled",
    }
    allowed = text_of(excess.figure, excess.allowed)
    sentence = f"{sentences[excess.figure]}; allowed: {allowed} ({excess.origin})."
    causes = {
        "syncs": _lines_of_waits,
        "transfer_bytes": _lines_of_copies,
        "memory_bytes": _lines_of_memory,
        "time_ns": _lines_of_time,
    }
    rows = causes[excess.figure](measured)
    return "\n".join([sentence, *_table(rows, folder)])


class _Cause(NamedTuple):
    """What one line did: how bad that is, and in words."""

    site: Site | None
    weight: float
    words: str


_Amounts = Counter[Site | None]  # by line; None where the line is not known


def _lines_of_waits(measured: MeasuredTest) -> list[_Cause]:
    """The lines at which the host waited."""
    kinds: defaultdict[Site | None, Counter[str]] = defaultdict(Counter)
    for record in measured.ledger:
        if isinstance(record, Sync):
            kinds[record.site][record.what] += 1
    causes = []
    for site, counts in kinds.items():
        phrases = []
        for kind, count in counts.most_common():
            phrases.append(f"{count} x {kind}")
        words = ", ".join(phrases)
        causes.append(_Cause(site, counts.total(), words))
    return causes


def _lines_of_copies(measured: MeasuredTest) -> list[_Cause]:
    """The lines that copied, by their bytes."""
    copies: defaultdict[Site | None, list[Transfer]] = defaultdict(list)
    for copy in measured.ledger.transfers():
        copies[copy.site].append(copy)
    return [_cause_of_copies(site, group) for site, group in copies.items()]


def _cause_of_copies(site: Site | None, copies: list[Transfer]) -> _Cause:
    """What the copies of one line come to: their bytes, their number and their directions."""
    size = sum(copy.bytes for copy in copies)
    number = count_phrase(len(copies), "copy", "copies")
    ways = {_DIRECTIONS[copy.direction] for copy in copies}
    directions = " and ".join(sorted(ways))
    words = f"{short_size(size)} in {number} {directions}"
    return _Cause(site, size, words)


def _memory_events(records: Iterable[Record]) -> Iterator[Operation | Allocation]:
    """The records that say how much is in use on a device."""
    for record in records:
        if isinstance(record, Operation | Allocation):
            yield record


def _lines_of_memory(measured: MeasuredTest) -> list[_Cause]:
    """The lines that raised the peak of the fullest device, and by how much each; in all, the peak.

    What was in use before the test is a line of its own.
    """
    peaks = dict(measured.before)
    raised: defaultdict[str, _Amounts] = defaultdict(Counter)
    for event in _memory_events(measured.ledger):
        rise = event.live - peaks.get(event.device, 0)
        if rise > 0:
            peaks[event.device] = event.live
            raised[event.device][event.site] += rise
    fullest = max(peaks, key=lambda device: peaks[device], default="cuda:0")
    causes = []
    for site, size in raised[fullest].items():
        words = f"raised the peak by {short_size(size)}"
        causes.append(_Cause(site, size, words))
    before = measured.before.get(fullest, 0)
    if before:
        words = f"{short_size(before)} were in use before the test, by its fixtures"
        causes.append(_Cause(None, before, words))
    return causes


def _lines_of_time(measured: MeasuredTest) -> list[_Cause]:
    """The lines that took time on the host or on the device."""
    host: _Amounts = Counter()
    device: _Amounts = Counter()
    seconds = measured.times.by_record(measured.ledger)
    for record in measured.ledger:
        spent = seconds.get(record.index)
        if spent is not None:
            host[record.site] += _to_nanoseconds(spent.host)
            device[record.site] += _to_nanoseconds(spent.device)
    causes = []
    for site, on_host in host.items():
        on_device = device[site]
        words = f"host {duration(on_host)}, GPU {duration(on_device)}"
        causes.append(_Cause(site, on_host + on_device, words))
    return causes


def _table(causes: list[_Cause], folder: str) -> list[str]:
    """The causes as lines of text, the worst first; not more than can be read."""
    causes = sorted(causes, key=lambda cause: -cause.weight)
    shown = causes[:_MOST_LINES]
    places = _as_column([_place(cause.site, folder) for cause in shown])
    words = _as_column([cause.words for cause in shown])
    rows = []
    for place, what, cause in zip(places, words, shown, strict=True):
        row = f"  {place}  {what}  {_source(cause.site)}"
        rows.append(row.rstrip())
    rest = len(causes) - len(shown)
    if rest:
        rows.append(f"  and {count_phrase(rest, 'more line')}")
    return rows


def _as_column(texts: list[str]) -> list[str]:
    """The texts, all as long as the longest of them."""
    width = max(map(len, texts), default=0)
    return [text.ljust(width) for text in texts]


def _place(site: Site | None, folder: str) -> str:
    """A line as it is named in a failure: "train.py:14"."""
    if site is None:
        return "(no line known)"
    file = site.file
    if file.startswith(folder + os.sep):
        file = os.path.relpath(file, folder)
    return f"{file}:{site.line}"


def _source(site: Site | None) -> str:
    """The text of a line, as far as it fits."""
    if site is None:
        return ""
    return cut(linecache.getline(site.file, site.line).strip(), 60)
