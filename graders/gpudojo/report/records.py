"""What is known of a submission beside its row: record, reference, sources; and charts' figures."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from virtual_cuda.ledger import Timeline, same_call

from gpudojo.classes.records import Record
from gpudojo.classes.store import Store
from gpudojo.grading.notebooks import NotANotebook
from gpudojo.grading.sources import Unparsable
from gpudojo.model.evidence import Modelled, struct_or_none
from gpudojo.model.results import Attempt, CheckRow, SubmissionRow
from gpudojo.report.charts import Bar, Curve, curve_from, is_drawable
from gpudojo.report.rendering import format_duration, format_size
from gpudojo.submissions.choosing import source_parts
from gpudojo.submissions.names import SOURCES, ending_of

NO_PICTURES: Final = "This evidence has no timeline of the reference on the public seed."
UNKNOWN_CALL: Final = (
    "This run did not record which call this is, so it cannot be compared with the reference's."
)
NOTHING_THERE: Final = (
    "The reference has no timeline for this call: "
    "it hardly used a device, or did not make the call."
)
LARGEST_FILE: Final = 400_000  # bytes of a file that is shown
LINES_AROUND: Final = 3  # before and after the one that a check names


@dataclass(frozen=True)
class TimelinePair:
    """The timeline of a student's call and of the same call of the reference."""

    mine: Timeline | None
    theirs: Timeline | None = None
    missing: str = ""  # why there is none of the reference


class ShownSource(NamedTuple):
    """The lines of a file, or of a code cell of a notebook."""

    cell: int | None
    lines: list[str]


class SourceLine(NamedTuple):
    """A line of source beside a check."""

    number: int
    text: str
    is_named: bool  # it is the one that the check names


class MeasuredCase(NamedTuple):
    """A fact of the student's record that may hold measurements."""

    facts: Mapping[str, Any]  # those it is one of, and those that only the reference has
    fact: Any
    reference: Any  # the reference's fact of the same name


@dataclass(frozen=True)
class SubmissionRecords:
    """The record of one submission, if there is one, that of the reference, and the sources."""

    record: Record | None
    reference: Record | None  # of the same run
    sources: Mapping[str, bytes] = field(default_factory=dict)  # what was handed in, by path

    @functools.cached_property
    def texts(self) -> dict[str, list[ShownSource]]:
        """The text of each file, or of each of its code cells, by path; found once.

        Files that are long or cannot be read are left out.
        """
        texts: dict[str, list[ShownSource]] = {}
        for path, data in self.sources.items():
            if len(data) > LARGEST_FILE or not ending_of(path, SOURCES):
                continue
            try:
                parts = source_parts(path, data)
            except (Unparsable, NotANotebook, RecursionError, MemoryError):
                continue
            texts[path] = []
            for part in parts:
                lines = part.source.splitlines()
                texts[path].append(ShownSource(part.cell, lines))
        return texts

    def timeline_pair(self, exercise: str, function: str) -> TimelinePair:
        """Return the timelines of the student's busiest call and of the reference's same call.

        Where there is none of the reference, `missing` tells why; both are None without a timeline
        of the student's.
        """
        mine = _timeline_of(self.record, exercise, function)
        if mine is None:
            return TimelinePair(None)
        timelines = self._timelines_of_reference()
        of_function = timelines.get(f"{exercise}::{function}", [])
        theirs = same_call(mine, of_function)
        if theirs is not None:
            return TimelinePair(mine, theirs)
        if not any(timelines.values()):
            return TimelinePair(mine, missing=NO_PICTURES)
        if mine.place is None:
            return TimelinePair(mine, missing=UNKNOWN_CALL)
        return TimelinePair(mine, missing=NOTHING_THERE)

    def _timelines_of_reference(self) -> dict[str, Sequence[Timeline]]:
        """Return the timelines of the reference's calls, by "exercise::function"."""
        timelines: dict[str, Sequence[Timeline]] = {}
        if self.reference is None:
            return timelines
        for name, seen in self.reference.functions.items():
            timelines[name] = seen.timelines
        return timelines

    def race_bars(self, exercise: str, function: str) -> list[Bar]:
        """Return modelled times of the loop, the student's code and the reference.

        There are no bars where the student's record has no times.
        """
        mine = _modelled_times(self.record, exercise, function)
        theirs = _modelled_times(self.reference, exercise, function)
        if mine is None:
            return []
        loop = mine.loop
        if theirs is not None:
            loop = theirs.loop  # it is measured beside the reference
        if not loop:
            return []
        bars = [_bar_of_time("the loop", loop, "other")]
        if mine.student:
            bars.append(_bar_of_time("yours", mine.student, "mine"))
        if theirs is not None and theirs.student:
            bars.append(_bar_of_time("the reference", theirs.student, "theirs"))
        return bars

    def peak_bars(self, exercise: str, function: str) -> list[Bar]:
        """Return peak memory of the plain loop, the student's code and the reference.

        There are no bars where the student's record has no peak.
        """
        for case in self._measured_cases(exercise, function):
            plain = _number_in(case.facts, "stored")
            mine = _number_in(case.fact, "peak")
            theirs = _number_in(case.reference, "peak")
            if not plain or not mine:
                continue
            bars = [
                _bar_of_size("plain", plain, "other"),
                _bar_of_size("yours", mine, "mine"),
            ]
            if theirs:
                bars.append(_bar_of_size("the reference", theirs, "theirs"))
            return bars
        return []

    def memory_curves(self, exercise: str, function: str) -> list[Curve]:
        """Return memory curves of the plain loop, the student's code and the reference.

        Older records have none.
        """
        for case in self._measured_cases(exercise, function):
            stored_curve = case.facts.get("stored_curve")
            own_curve = _value_in(case.fact, "curve")
            curve_of_reference = _value_in(case.reference, "curve")
            plain = curve_from("all activations stored", stored_curve, "other")
            mine = curve_from("yours", own_curve, "mine")
            theirs = curve_from("the reference", curve_of_reference, "theirs")
            if plain is None or mine is None:
                continue
            curves = [plain, mine]
            if theirs is not None:
                curves.append(theirs)
            return curves
        return []

    def _measured_cases(self, exercise: str, function: str) -> Iterator[MeasuredCase]:
        """Yield every fact that the student's record has of a function.

        Each comes with the reference's fact of the same name.
        """
        reference_facts: dict[str, Any] = {}
        for facts in _facts_of(self.reference, exercise, function):
            for name, fact in facts.items():
                reference_facts.setdefault(name, fact)
        for own_facts in _facts_of(self.record, exercise, function):
            facts = dict(own_facts)
            for name, fact in own_facts.items():
                if fact is None:
                    # Only the reference's record has it, such as what a plain loop takes.
                    facts[name] = reference_facts.get(name)
            for name, fact in own_facts.items():
                fact_of_reference = reference_facts.get(name)
                yield MeasuredCase(facts, fact, fact_of_reference)

    def code_around(
        self, check: CheckRow, hide_names: Callable[[str], str] = str
    ) -> list[SourceLine]:
        """Return the lines around the one that a check names; none where it is not known.

        What they are indented by in common is left out. `hide_names` replaces names in their text.
        """
        lines = self._lines_of_source(check) or self._lines_of_timeline(check)
        if check.line is None or check.line not in lines:
            return []
        numbers = []
        for number in sorted(lines):
            if abs(number - check.line) <= LINES_AROUND:
                numbers.append(number)
        code = "\n".join(lines[number] for number in numbers)
        texts = textwrap.dedent(code.expandtabs(4)).split("\n")
        if len(texts) != len(numbers):  # a line of untrusted evidence with a line break in it
            return []
        shown = []
        for number, text in zip(numbers, texts, strict=True):
            is_named = number == check.line
            shown.append(SourceLine(number, hide_names(text), is_named))
        return shown

    def _lines_of_source(self, check: CheckRow) -> Mapping[int, str]:
        """Return the lines of the file or cell that a check names, by number.

        There are none if it was not kept.
        """
        for text in self.texts.get(check.file or "", ()):
            if text.cell == check.cell:
                return dict(enumerate(text.lines, 1))
        return {}

    def _lines_of_timeline(self, check: CheckRow) -> Mapping[int, str]:
        """Return the lines that a timeline knows, by number, where the source was not kept.

        They are counted as the check counts: in a file, or in a cell of a notebook.
        """
        exercise = check.id.partition("::")[0]
        timeline = _timeline_of(self.record, exercise, check.function)
        if timeline is None or self.record is None:
            return {}
        if check.cell is None:
            return timeline.lines
        # A timeline counts the lines of a notebook through; the check counts in its cell.
        file = self.record.files.get(check.file or "")
        if file is None or check.cell > len(file.cells):
            return {}
        lines_before = file.cells[check.cell - 1] - 1
        lines = {}
        for number, text in timeline.lines.items():
            number_in_cell = number - lines_before
            if number_in_cell > 0:
                lines[number_in_cell] = text
        return lines


class RecordStore:
    """The records beside a results file."""

    def __init__(self, results: Path, reference: str) -> None:
        """Load the record of the reference, by its key; `results` is a file."""
        self._store = Store(results.parent)
        self.reference = self._load_record(reference)
        self.given = self._load_sources(reference)  # the reference's files, with the given code

    def of_submission(self, row: SubmissionRow) -> SubmissionRecords:
        """Return what is known of a submission beside its row; empty where it was not kept."""
        record = self._load_record(row.record)
        reference = self.reference
        if row.reference:  # with seeds per student, each has a reference of its own
            reference = self._load_record(row.reference)
        return SubmissionRecords(record, reference, self.sources_of(row))

    def sources_of(self, row: SubmissionRow) -> dict[str, bytes]:
        """Return what was handed in, by path; empty where it was not kept."""
        return self._load_sources(row.digest)

    def sources_of_attempt(self, attempt: Attempt) -> dict[str, bytes]:
        """Return what was handed in at another time; empty where it was not kept."""
        return self._load_sources(attempt.digest)

    def _load_record(self, key: str | None) -> Record | None:
        """Return the record of this key; None without a key, or where it was not kept."""
        if not key:
            return None
        return self._store.load_record(key)

    def _load_sources(self, key: str | None) -> dict[str, bytes]:
        """Return the files of this key, by path; none without a key, or if they were not kept."""
        if not key:
            return {}
        return self._store.load_sources(key)


def _bar_of_time(label: str, seconds: float, kind: str) -> Bar:
    """Return a bar for a time; `kind` is a class of the style sheet."""
    return Bar(label, seconds, format_duration(seconds), kind)


def _bar_of_size(label: str, count: float, kind: str) -> Bar:
    """Return a bar for so many bytes; `kind` is a class of the style sheet."""
    return Bar(label, count, format_size(count), kind)


def _timeline_of(record: Record | None, exercise: str, function: str) -> Timeline | None:
    """Return the timeline of a function's busiest call, if it was recorded. Else None."""
    if record is None:
        return None
    seen = record.functions.get(f"{exercise}::{function}")
    if seen is None:
        return None
    return seen.timeline


def _facts_of(record: Record | None, exercise: str, function: str) -> list[Mapping[str, Any]]:
    """Return the facts of each observation of a function, by name; none without a record of it."""
    if record is None:
        return []
    seen = record.functions.get(f"{exercise}::{function}")
    if seen is None:
        return []
    observations = seen.evidence.observations
    return [observation.facts for observation in observations.values()]


def _modelled_times(record: Record | None, exercise: str, function: str) -> Modelled | None:
    """Return the modelled times of a function, if it has any that can be drawn.

    Else None. All of them are seconds.
    """
    for facts in _facts_of(record, exercise, function):
        speed = _value_in(facts, "speed")
        times = struct_or_none(speed, Modelled)
        if times is None or not times.student:
            continue
        if is_drawable(times.loop) and is_drawable(times.student):
            return times
    return None


def _value_in(facts: Any, key: str) -> Any:
    """Return a value of untrusted evidence; None if there is none, or these are no facts."""
    if not isinstance(facts, Mapping):
        return None
    return facts.get(key)


def _number_in(facts: Any, key: str) -> float | None:
    """Return a number of untrusted evidence; None if there is none that can be drawn."""
    value = _value_in(facts, key)
    if not is_drawable(value):
        return None
    return float(value)
