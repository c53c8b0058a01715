"""Exercises, functions, probes, checks, and named misconceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_type_hints, overload

import msgspec

from gpudojo.model.errors import BadDay
from gpudojo.model.evidence import (
    CallStatus,
    Cases,
    Fact,
    LastAsked,
    Observation,
    Raised,
    ScenarioRaised,
    convert_facts,
    plain_facts,
)
from gpudojo.model.hints import FunctionHints, read_hints

# Names of types in `torch.return_types`: what these functions return for one dimension.
_VALUES_AND_INDICES: Final = frozenset(
    {"min", "max", "sort", "topk", "median", "nanmedian", "mode", "kthvalue", "cummin", "cummax"}
)


LONGEST_NAME: Final = 60  # characters of the name of a type that a failure shows


def with_article(kind: str) -> str:
    """A type's name with its article: "a list", "an int", "an ndarray"; "None" for NoneType.

    A long name is cut off: a student's class may have what it was called with for a name.
    """
    if len(kind) > LONGEST_NAME:
        kind = f"{kind[:LONGEST_NAME]}…"
    if kind == "NoneType":
        return "None"
    if kind in _VALUES_AND_INDICES:
        return f"the values and the indices of `torch.{kind}`"
    if kind == "ndarray" or kind[:1].lower() in tuple("aeiou"):  # spoken "en-dee-array"
        return f"an {kind}"
    return f"a {kind}"


NO_HINTS: Final = FunctionHints()


class Misconception(msgspec.Struct, frozen=True):
    """A common mistake with a name, and why it matters.

    `at`, `cause` and `unless` are patterns, which `grading.source_patterns` finds.
    """

    name: str
    why: str
    at: tuple[str, ...] = ()  # where to look in the source when no record tells the line
    cause: tuple[str, ...] = ()  # the mistake itself, better than the line where it was noticed
    # Three steps: a question that gives nothing away, a pointer, nearly the answer.
    hints: tuple[str, ...] = ()
    # The mistake that it is if the source shows that one's cause and not this one's.
    rather: str = ""
    # Whether it is named only where the source shows its cause: others look the same.
    from_source: bool = False
    # Patterns with which it is not named: what it says is missing is there.
    unless: tuple[str, ...] = ()


@dataclass(eq=False)
class Failed(Exception):
    """Raised by a check whose claim does not hold: what happened, and what was expected."""

    happened: str
    expected: str
    line: int | None = None  # to show, if it is known
    misconception: str | None = None
    at: tuple[str, ...] = ()  # patterns for `grading.source_patterns`, where no line is known
    # The lines that the failing call executed, where they are recorded.
    ran: tuple[tuple[int, int], ...] | None = None
    about: str = ""  # the check whose hints are shown, where that is another one


def returned_other_type(
    kind: str, expected: str, before: str = "", key: str | None = None
) -> Failed:
    """The failure of a function that returned something of another type.

    Its line is the `return` that was executed.
    """
    happened = f"{before}it returned {with_article(kind)}"
    return Failed(happened, expected, None, key, ("return",))


class Todo(Exception):
    """Raised by a check for a part that the student has not started; the message may say which."""


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# Lines that were executed, each pair the first and last of some that follow each other.
Lines = tuple[tuple[int, int], ...]
GPUS: Final = {"one gpu": 1, "two gpus": 2, "three gpus": 3}
OTHERS: Final = (*GPUS, "mac", "laptop")  # machines that are never the one with the real GPU


@dataclass(frozen=True)
class Probe(Generic[T_co]):
    """Calls the student's function in some scenarios and describes what it did.

    It does not judge.
    """

    name: str
    look: Callable[[Any], T_co]  # gets a `Call`; its return type tells how evidence is read
    machine: str = "bench"  # which machine it needs, see `grading.probing.open_machine`
    edge: bool = False  # whether it only tries edge cases: the check `runs` does not look at it

    @property
    def elsewhere(self) -> bool:
        """True if it needs a machine that a process with a real GPU cannot be.

        A reference's probe tries several.
        """
        return self.machine in (*OTHERS, "reference")

    def collect_facts(self, call: Any) -> dict[str, Fact]:
        """What the probe saw, as plain data."""
        found: dict[str, Fact] = plain_facts(self.look(call))
        return found

    @cached_property
    def return_type(self) -> Any:
        """The type of the facts, as the probe declares it."""
        return get_type_hints(self.look)["return"]


class Seen:
    """What the probes of one function saw. `seen[probe]` has the type that the probe returns."""

    def __init__(self, observations: Mapping[str, Observation]) -> None:
        self.observations = observations
        self._asked = LastAsked()
        self._typed: dict[str, Any] = {}  # by the name of the probe
        self._joined: dict[tuple[str, ...], Any] = {}  # by the names of the probes

    def __getitem__(self, probe: Probe[T]) -> T:
        """What a probe saw. Notes that a check asked for it.

        Raises ScenarioRaised if the student's function raised an error, KeyError if nothing was
        recorded of the probe, and BadEvidence if what was recorded has another type.
        """
        if probe.name not in self._typed:
            self._typed[probe.name] = self._convert(probe)
        self._asked.note(probe.name)
        found: T = self._typed[probe.name]
        return found

    def _convert(self, probe: Probe[T]) -> T:
        """What a probe saw, in the type that it returns. Its scenarios note who asks for them."""
        seen = self.observations[probe.name]
        if seen.status is CallStatus.RAISED and seen.raised is not None:
            raise ScenarioRaised(seen.raised)
        found: T = convert_facts(seen.facts, probe.return_type)
        parts: Iterable[Any] = [found]
        if isinstance(found, dict) and not isinstance(found, Cases):
            parts = found.values()
        for cases in parts:
            if isinstance(cases, Cases):
                cases.probe = probe.name
                cases.asked = self._asked
        return found

    def about(self, probe: str | None, scenario: str | None = None) -> None:
        """Note what is asked about, in one probe or any.

        A failure shows a line that these calls executed.
        """
        self._asked.note(probe, scenario)

    @property
    def ends(self) -> dict[str, tuple[CallStatus, Raised | None]]:
        """How each probe ended, and with which error."""
        return {name: (seen.status, seen.raised) for name, seen in self.observations.items()}

    def begin_check(self) -> None:
        """Forget what was asked for: another check begins."""
        self._asked.forget()

    @property
    def ran(self) -> Lines | None:
        """The lines executed by the calls that were asked about last.

        Returns None where nothing was asked. Calls outside of scenarios stand for a scenario that
        has no record, and all calls for none.
        """
        if not self._asked.anything:
            return None
        executed = []  # by scenario, of each probe that was asked for
        for name, seen in self.observations.items():
            if self._asked.probe in (name, None):
                executed.append(seen.executed)
        chosen: list[list[tuple[int, int]]] = []
        scenario = self._asked.scenario
        if scenario is not None:
            in_scenario = [each[scenario] for each in executed if scenario in each]
            outside = [each[""] for each in executed if "" in each]
            chosen = in_scenario or outside
        if not chosen:
            for by_scenario in executed:
                chosen += by_scenario.values()
        lines = {run for runs in chosen for run in runs}
        return tuple(sorted(lines)) or None

    def cases(self, *probes: Probe[Cases[T]]) -> Cases[T]:
        """The scenarios of several probes in one. Raises what `seen[probe]` raises."""
        parts = [self[probe] for probe in probes]
        names = tuple(probe.name for probe in probes)
        if names not in self._joined:
            joined: Cases[T] = Cases()
            for part in parts:
                joined.add(part)
            self._joined[names] = joined
        found: Cases[T] = self._joined[names]
        return found


Judge = Callable[[Seen, Seen], None]  # gets the student's and the reference's; raises Failed
# The misconception behind an error of the student's function.
Diagnose = Callable[[Raised, Seen], str | None]


@dataclass(frozen=True)
class Check:
    """One claim; its docstring is the line the student reads."""

    name: str
    claim: str
    points: float
    judge: Judge
    # Checks of the same function that must pass first. A claim that something is not done needs one
    # that something is done in the same calls: doing nothing earns no points.
    needs: tuple[str, ...] = ()


PLACES: Final = 8  # of one pattern in one function


def pattern_key(function: str, what: str) -> str:
    """The key for the line of a pattern, beside the keys for names; no name has a space."""
    return f"{function} {what}"


def line_to_show(
    patterns: Iterable[str], function: str, lines: Mapping[str, int], ran: Lines | None
) -> int | None:
    """The line of the first of these patterns that the failing call executed.

    Returns None where there is no such line. Of several places the first one counts; of `return`
    and of patterns that begin with `last `, the last one. `skipped to(` is the condition by which a
    place was left out, and the empty pattern is where the function begins. Without a record of what
    ran, any place will do.
    """
    for pattern in patterns:
        what = pattern.removeprefix("skipped ").removeprefix("last ").removeprefix("first ")
        places = _places_of_pattern(what, function, lines)
        skipped = pattern.startswith("skipped ")
        takes_last = "last " in pattern or pattern == "return"
        if ran is None:
            # Which of several `return`s it was, nothing tells.
            if skipped or (pattern == "return" and len(places) > 1):
                places = []
        elif skipped:
            places = _conditions_around(places, lines, ran)
        else:
            places = [line for line in places if was_executed(line, ran)]
            takes_last = takes_last or what == "return"
        if places:
            if takes_last:
                return places[-1]
            return places[0]
    return None


def _places_of_pattern(pattern: str, function: str, lines: Mapping[str, int]) -> list[int]:
    """The lines of a pattern in a function; of the empty pattern, where the function begins."""
    keys = [function]
    if pattern:
        numbered = [f"{pattern} {number}" for number in range(2, PLACES + 1)]
        keys = [pattern_key(function, each) for each in (pattern, *numbered)]
    return [lines[key] for key in keys if key in lines]


def _conditions_around(places: list[int], lines: Mapping[str, int], ran: Lines) -> list[int]:
    """The conditions by which those of the places were left out that were not executed."""
    found = []
    for line in places:
        if was_executed(line, ran):
            continue
        # The innermost condition around it that was executed.
        condition = lines.get(f"guard {line}", 0)
        while condition and not was_executed(condition, ran):
            condition = lines.get(f"guard {condition}", 0)
        if condition:
            found.append(condition)
    return found


def was_executed(line: int, ran: Lines) -> bool:
    """True if a line is in one of the runs of executed lines."""
    return any(first <= line <= last for first, last in ran)


DRAWINGS: Final = 64  # results of a function that draws, which are kept


class Drawing(NamedTuple):
    """A function that keeps what it draws, and its arguments for the seed of a probe."""

    draw: Any  # of `lru_cache`
    every: Callable[[int], Iterable[tuple[Any, ...]]]

    def draw_for(self, seed: int) -> None:
        """Draw everything for the seed of a probe, so that it is kept."""
        for arguments in self.every(seed):
            self.draw(*arguments)


@dataclass
class Function:
    """One function students write."""

    name: str
    exercise: Exercise | None = field(default=None, repr=False, compare=False)
    probes: list[Probe[Any]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    diagnose: Diagnose = lambda raised, seen: None

    @property
    def written_hints(self) -> FunctionHints:
        """What the exercise's file of hints says about this function.

        Raises BadDay for an author's mistake in that file.
        """
        if self.exercise is None:
            return NO_HINTS
        return self.exercise.written_hints.get(self.name, NO_HINTS)

    @property
    def hints(self) -> tuple[str, ...]:
        """All hints of the function, in the order of their file."""
        return self.written_hints.every

    def hints_for(self, *keys: str | None, mistake: Misconception | None = None) -> tuple[str, ...]:
        """The hints for a failure.

        These are the steps of the mistake if it has some, else the hints about the first of these
        keys that has some, else all hints of the function. Raises BadDay.
        """
        if mistake is not None and mistake.hints:
            return mistake.hints
        for key in keys:
            if key is not None and key in self.written_hints.by_key:
                return self.written_hints.by_key[key]
        return self.hints

    def has_advice_on(self, key: str) -> bool:
        """True if hints or patterns are written for this check or misconception."""
        return key in self.written_hints.keys

    def signs_for(self, *keys: str | None) -> tuple[str, ...]:
        """The source patterns that go with these keys, the best first."""
        patterns: list[str] = []
        for key in keys:
            if key is not None and key in self.written_hints.lines:
                patterns += self.written_hints.lines[key]
        return tuple(patterns)

    def draws_once(
        self,
        draw: Callable[..., T],
        every: Callable[[int], Iterable[tuple[Any, ...]]] = lambda seed: [(seed,)],
    ) -> Callable[..., T]:
        """Declare what scenarios are made of: drawn from a seed alone, and kept.

        `every` gives the arguments that `draw` is called with for the seed of a probe. Where many
        submissions have the same seeds, it is drawn once for all of them, before they run. Who
        passes a result to student code passes a copy.
        """
        kept = lru_cache(maxsize=DRAWINGS)(draw)
        self.drawings.append(Drawing(kept, every))
        return kept

    @overload
    def probe(self, look: Callable[[Any], T]) -> Probe[T]: ...
    @overload
    def probe(
        self, *, machine: str = ..., edge: bool = ...
    ) -> Callable[[Callable[[Any], T]], Probe[T]]: ...
    def probe(
        self,
        look: Callable[[Any], Any] | None = None,
        *,
        machine: str = "bench",
        edge: bool = False,
    ) -> Any:
        """Declare a probe under its function's name.

        It returns a struct, `Cases` of structs, or a dict of `Cases`. One that tries edge cases
        only comes last: after a time-out, no other is run.
        """

        def declare_probe(look: Callable[[Any], Any]) -> Probe[Any]:
            probe = Probe(look.__name__, look, machine, edge)
            self.probes.append(probe)
            return probe

        if look is None:
            return declare_probe
        return declare_probe(look)

    def check(self, points: float, needs: tuple[str, ...] = ("runs",)) -> Callable[[Judge], Judge]:
        """Declare a check under its function's name; its claim is the docstring.

        Raises ValueError without one.
        """

        def declare_check(judge: Judge) -> Judge:
            claim = " ".join((judge.__doc__ or "").split())
            if not claim:
                check = f"the check {judge.__name__} of {self.name}"
                raise ValueError(f"{check} has no docstring for the student to read")
            declared = Check(judge.__name__, claim, points, judge, needs)
            self.checks.append(declared)
            return judge

        return declare_check

    @property
    def points(self) -> float:
        """What all checks of the function are worth."""
        return sum(check.points for check in self.checks)

    @property
    def is_value(self) -> bool:
        """True if it is not called: its value is what was handed in."""
        return any(probe.machine == "value" for probe in self.probes)


@dataclass
class Exercise:
    """One student file."""

    stem: str  # "04_modifying_training_loop_gpu"
    title: str
    points: int
    reading: tuple[str, ...] = ()
    functions: list[Function] = field(default_factory=list)
    hints_file: Path | None = None  # set by `catalogue` for an exercise of a day

    def function(self, name: str) -> Function:
        """Declare a function that students write."""
        declared = Function(name, self)
        self.functions.append(declared)
        return declared

    def function_named(self, name: str) -> Function:
        """Return a function that was declared. Raises KeyError if there is none of this name."""
        for function in self.functions:
            if function.name == name:
                return function
        raise KeyError(name)

    @cached_property
    def written_hints(self) -> Mapping[str, FunctionHints]:
        """The hints by function, read when they are first needed.

        Raises BadDay for an author's mistake in the file.
        """
        if self.hints_file is None:
            return {}
        hints = read_hints(self.hints_file)
        functions = [function.name for function in self.functions]
        for name in hints:
            if name not in functions:
                known = ", ".join(functions)
                reason = f"{self.stem} has no function {name!r}; its functions are: {known}"
                raise BadDay(str(self.hints_file), None, reason)
        return hints

    @property
    def number(self) -> str:
        """The "04" of `04_modifying_training_loop_gpu`."""
        return self.stem.partition("_")[0]
