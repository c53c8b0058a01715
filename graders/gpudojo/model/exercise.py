"""Exercises, functions, probes, checks, and named misconceptions."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_type_hints, overload

import msgspec

from gpudojo.model.declared import require_points, require_texts
from gpudojo.model.errors import (
    BadDay,
    BadEvidence,
    Place,
    place_of_declaration,
    suggest_name,
)
from gpudojo.model.evidence import (
    CallStatus,
    Cases,
    Fact,
    LastAsked,
    MissingEvidence,
    Observation,
    Raised,
    ScenarioRaised,
    convert_facts,
    plain_facts,
)
from gpudojo.model.hints import FunctionHints, read_hints
from gpudojo.model.toml_mistakes import line_of_setting

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


class Misconception(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A common mistake with a name, and why it matters.

    `at`, `cause` and `unless` are patterns, which `grading.source_patterns` finds.
    """

    name: str
    why: str
    at: tuple[str, ...] = ()  # where to look in the source when no record tells the line
    cause: tuple[str, ...] = ()  # the mistake itself, better than the line where it was noticed
    # Three steps: a question that gives nothing away, a pointer, nearly the answer.
    hints: tuple[str, ...] = ()
    read: str = ""  # a page about it
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
    source: str = ""  # file:line of the author's code, where that is what is to be mended
    called_at: str = ""  # file:line of the probe's call, where no line of the student's ran


def returned_other_type(
    kind: str, expected: str, before: str = "", key: str | None = None
) -> Failed:
    """The failure of a function that returned something of another type.

    It is returned, not raised. `kind` is the type's name, `before` begins the sentence, `key` names
    a misconception. Its line is the `return` that was executed.
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
# What a probe may need, see `grading.probing.open_machine`; `value` and `reference` call nothing.
MACHINES: Final = ("bench", "a gpu", "unwatched", "value", "reference", *OTHERS)


@dataclass(frozen=True)
class Probe(Generic[T_co]):
    """Calls the student's function in some scenarios and describes what it did.

    It does not judge.
    """

    name: str
    look: Callable[[Any], T_co]  # gets a `Call`; its return type tells how evidence is read
    machine: str = "bench"  # which machine it needs, see `grading.probing.open_machine`
    edge: bool = False  # whether it only tries edge cases: the check `runs` does not look at it
    place: Place | None = field(default=None, compare=False)  # where it is declared

    @property
    def elsewhere(self) -> bool:
        """True if it needs a machine that a process with a real GPU cannot be.

        A reference's probe tries several.
        """
        return self.machine in (*OTHERS, "reference")

    def collect_facts(self, call: Any) -> dict[str, Fact]:
        """Run the probe, and return what it saw as plain data. Raises what the probe raises."""
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

        Raises ScenarioRaised if the student's function raised an error, MissingEvidence if nothing
        was recorded of the probe, and BadEvidence if what was recorded has another type.
        """
        if probe.name not in self._typed:
            self._typed[probe.name] = self._convert(probe)
        self._asked.note(probe.name)
        found: T = self._typed[probe.name]
        return found

    def _convert(self, probe: Probe[T]) -> T:
        """What a probe saw, in the type that it returns. Its scenarios note who asks for them.

        Raises ScenarioRaised if the student's function raised an error, MissingEvidence if nothing
        was recorded of the probe, and BadEvidence if what was recorded has another type.
        """
        seen = self.observations.get(probe.name)
        if seen is None:
            raise MissingEvidence(f"nothing was recorded of the probe `{probe.name}`")
        if seen.status is CallStatus.RAISED and seen.raised is not None:
            raised = seen.raised
            if not raised.scenario:
                raised = msgspec.structs.replace(raised, scenario=probe.name)
            raise ScenarioRaised(raised)
        try:
            found: T = convert_facts(seen.facts, probe.return_type)
        except BadEvidence as error:
            where = f"the probe `{probe.name}`"
            if probe.place is not None:
                where += f" ({probe.place})"
            raise BadEvidence(
                f"{where} returned other values than it declares: {error.reason}"
            ) from None
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
        """The scenarios of several probes in one; joined once, and noted as asked for.

        Raises ScenarioRaised if the student's function raised an error in one of them,
        MissingEvidence if
        nothing was recorded of one, and BadEvidence if what was recorded has another type.
        """
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
    place: Place | None = field(default=None, compare=False)  # where it is declared


PLACES: Final = 8  # of one pattern in one function


def pattern_key(function: str, what: str) -> str:
    """The key for the line of a pattern, beside the keys for names; no name has a space."""
    return f"{function} {what}"


class LineRole(enum.StrEnum):
    """What the line shown for a failure is. The value is its label."""

    LINE = "line"  # the mistake, or where it was noticed
    RETURNED = "returned"  # the `return` of what is wrong: nothing tells what made it wrong
    ASSIGNED = "assigned"  # gave its value to the variable that was returned
    CONDITION = "condition"  # decided on what was done

    @property
    def before(self) -> str:
        """The words before the line where there is no label: "returned in " before "line 3"."""
        if self is LineRole.LINE:
            return ""
        return f"{self} in "


class FailureLine(NamedTuple):
    """A line of the student's file, and what it is to a failure."""

    line: int
    role: LineRole


def line_to_show(
    patterns: Iterable[str],
    function: str,
    lines: Mapping[str, int],
    ran: Lines | None,
    recorded: int | None = None,
) -> FailureLine | None:
    """The line of the first of these patterns that the failing call executed.

    `lines` are the lines of all patterns, by `pattern_key`; `ran` are the executed lines. Returns
    None where there is no such line. Of several places the first one counts; of `return` and of
    patterns that begin with `last `, the last one. `skipped to(` is the condition by which a place
    was left out, `reached to(` the `if` by which it was not, `reached line` the one around the line
    `recorded`. `between 8 and 12 to(` is the first place between these lines. `part 2 of return` is
    where the second part of a returned tuple comes from. The
    empty pattern is where the function begins. Without a record of what ran, any place will do.
    """
    for pattern in patterns:
        if pattern.startswith("reached "):
            shown = _condition_of(pattern, function, lines, ran, recorded)
        elif pattern.startswith("part "):
            part, _, what = pattern.partition(" of ")
            shown = _line_of(what, function, lines, ran)
            if shown is not None:
                shown = origin_of_returned(shown.line, lines, ran, part)
        else:
            shown = _line_of(pattern, function, lines, ran)
        if shown is not None:
            return shown
    return None


def _line_of(
    pattern: str, function: str, lines: Mapping[str, int], ran: Lines | None
) -> FailureLine | None:
    """The line of a pattern that was executed, or by which one was skipped. None without one."""
    between, pattern = _split_between(pattern)
    what = pattern.removeprefix("skipped ").removeprefix("last ").removeprefix("first ")
    places = _places_of_pattern(what, function, lines)
    if between is not None:
        places = sorted(line for line in places if line in between)
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
    if not places:
        return None
    line = places[-1] if takes_last else places[0]
    role = LineRole.LINE
    if skipped:
        role = _role_of_condition(line, lines)
    elif what == "return" and _returns_value(function, lines):
        role = LineRole.RETURNED
    elif what.endswith('":'):
        role = _role_of_item(line, lines)
    return FailureLine(line, role)


def _split_between(pattern: str) -> tuple[range | None, str]:
    """The lines between those of `between 8 and 12 to(`, and the pattern itself.

    None instead of the lines for a pattern that says nothing of them.
    """
    match pattern.split(" ", 4):
        case ["between", first, "and", last, what]:
            return range(int(first) + 1, int(last)), what
    return None, pattern


def _role_of_condition(line: int, lines: Mapping[str, int]) -> LineRole:
    """What a line is by which something was skipped: a loop decides on nothing."""
    if f"loop {line}" in lines:
        return LineRole.LINE
    return LineRole.CONDITION


def _role_of_item(line: int, lines: Mapping[str, int]) -> LineRole:
    """What the line is where the value of a dict is made: the `return` of a helper, or another."""
    if f"returns {line}" in lines:
        return LineRole.RETURNED
    return LineRole.ASSIGNED


def _condition_of(
    pattern: str,
    function: str,
    lines: Mapping[str, int],
    ran: Lines | None,
    recorded: int | None,
) -> FailureLine | None:
    """The `if` of a pattern such as `reached to(` or `reached line`. None without one."""
    what = pattern.removeprefix("reached ")
    places = _places_of_pattern(what, function, lines)
    if what == "line" and recorded is not None:
        places = [recorded]
    condition = _condition_reached(places, lines, ran)
    if condition is None:
        return None
    return FailureLine(condition, LineRole.CONDITION)


def _returns_value(function: str, lines: Mapping[str, int]) -> bool:
    """True if a function returns anything. Else the last statement stands for its `return`."""
    return pattern_key(function, "no return") not in lines


def origin_of_returned(
    returned: int, lines: Mapping[str, int], ran: Lines | None, part: str = ""
) -> FailureLine:
    """The line that a returned value comes from, if one can be told; else the `return` itself.

    `returned` is the line of the `return`, `lines` are the lines of all patterns, and `ran` is what
    was executed. A `part`, such as "part 2", is that one of a returned tuple. A returned variable
    comes from its last assignment, and a fixed value, such as True, from the condition by which it
    was chosen.
    """
    shown = FailureLine(returned, LineRole.RETURNED)
    if ran is None:
        return shown
    for what in (f"{returned} {part}", str(returned)):
        keys = [f"assigned {number} for {what}" for number in range(PLACES, 0, -1)]
        assigned = [lines[key] for key in keys if key in lines and was_executed(lines[key], ran)]
        if assigned:
            shown = FailureLine(assigned[0], LineRole.ASSIGNED)
            break
    if f"fixed {shown.line}" in lines:
        condition = _condition_reached([shown.line], lines, ran)
        if condition is not None:
            return FailureLine(condition, LineRole.CONDITION)
    return shown


def _condition_reached(
    places: Iterable[int], lines: Mapping[str, int], ran: Lines | None
) -> int | None:
    """The `if` around the first of these places that was executed and has one directly around it.

    None without a record of what ran.
    """
    for line in places:
        if ran is None or not was_executed(line, ran):
            continue
        condition = lines.get(f"guard {line}")
        if condition is not None and f"loop {condition}" not in lines:
            return _origin_of_condition(condition, lines, ran)
    return None


def _origin_of_condition(condition: int, lines: Mapping[str, int], ran: Lines) -> int:
    """The line of a condition; of one that is a variable, the line that set it, if that was
    executed.
    """
    asked = lines.get(f"asked {condition}", condition)
    return asked if was_executed(asked, ran) else condition


def _places_of_pattern(pattern: str, function: str, lines: Mapping[str, int]) -> list[int]:
    """The lines of a pattern in a function; of the empty pattern, where the function begins."""
    keys = [function]
    if pattern:
        numbered = [f"{pattern} {number}" for number in range(2, PLACES + 1)]
        keys = [pattern_key(function, each) for each in (pattern, *numbered)]
    return [lines[key] for key in keys if key in lines]


def _conditions_around(places: list[int], lines: Mapping[str, int], ran: Lines) -> list[int]:
    """The conditions by which those of the places were left out that were not executed.

    All of these are numbers of lines; `lines` has the condition around each, under "guard …", and
    `ran` is what was executed.
    """
    found = []
    for line in places:
        if was_executed(line, ran):
            continue
        # The innermost condition around it that was executed.
        condition = lines.get(f"guard {line}", 0)
        while condition and not was_executed(condition, ran):
            condition = lines.get(f"guard {condition}", 0)
        if condition:
            found.append(_origin_of_condition(condition, lines, ran))
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
    place: Place | None = field(default=None, repr=False, compare=False)  # where it is declared

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
        """All hints of the function, in the order of their file.

        Raises BadDay for a mistake in it.
        """
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

    def page_about(self, *keys: str | None, mistake: Misconception | None = None) -> str:
        """The page to read about a failure: that of the mistake, or of the first of these keys.

        Returns "" where neither has one. Raises BadDay.
        """
        if mistake is not None and mistake.read:
            return mistake.read
        for key in keys:
            if key is not None and key in self.written_hints.pages:
                return self.written_hints.pages[key]
        return ""

    def has_advice_on(self, key: str) -> bool:
        """True if hints or patterns are written for this check or misconception."""
        return key in self.written_hints.keys

    def signs_for(self, *keys: str | None) -> tuple[str, ...]:
        """The source patterns that go with these keys, the best first. Raises BadDay."""
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

        Returns `draw` as a function that remembers its results. `every` gives the arguments that
        `draw` is called with for the seed of a probe. Where many submissions have the same seeds,
        it is drawn once for all of them, before they run. Who passes a result to student code
        passes a copy.
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
        """Declare a probe under its function's name, and return it; also used as a decorator.

        The probe is added to `probes`. It returns a struct, `Cases` of structs, or a dict of
        `Cases`. One that tries edge cases only comes last: after a time-out, no other is run.
        Raises ValueError for a machine that there is not, and for a name that a probe has already.
        """
        if machine not in MACHINES:
            hint = suggest_name(str(machine), MACHINES)
            raise ValueError(f"there is no machine {machine!r} for a probe{hint}")

        def declare_probe(look: Callable[[Any], Any]) -> Probe[Any]:
            probe = Probe(look.__name__, look, machine, edge, place_of_declaration())
            for other in self.probes:
                if other.name == probe.name:
                    raise ValueError(
                        f"the name of the probe `{probe.name}` is used twice in {self.name}, first "
                        f"at {other.place}; give this one its own name"
                    )
            self.probes.append(probe)
            return probe

        if look is None:
            return declare_probe
        return declare_probe(look)

    def check(self, points: float, needs: tuple[str, ...] = ("runs",)) -> Callable[[Judge], Judge]:
        """Make a decorator that declares a check under its function's name.

        The docstring is its claim. The check is added to `checks`. `needs` are checks that must
        pass first. The decorator raises ValueError without a docstring, for points that are no
        number or below 0, and for `needs` that are no tuple of texts.
        """

        def declare_check(judge: Judge) -> Judge:
            """Add the check, and return the function as it is.

            Raises ValueError for what cannot be declared.
            """
            check = f"the check {judge.__name__} of {self.name}"
            claim = " ".join((judge.__doc__ or "").split())
            if not claim:
                raise ValueError(
                    f"{check} has no docstring for the student to read; write one below its `def`"
                )
            require_points(check, points)
            needed = require_texts(check, "needs", needs)
            declared = Check(judge.__name__, claim, points, judge, needed, place_of_declaration())
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
    place: Place | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note where it is declared.

        Raises ValueError for points that are no number or below 0, and for `reading` that is no
        tuple of texts.
        """
        self.place = place_of_declaration()
        require_points(self.stem, self.points)
        self.reading = require_texts(self.stem, "reading", self.reading)

    def function(self, name: str) -> Function:
        """Declare a function that students write: it is added to `functions` and returned.

        Raises ValueError for one that is declared already.
        """
        if any(function.name == name for function in self.functions):
            raise ValueError(
                f"{self.stem} has a function {name!r} already; give this one its own name"
            )
        declared = Function(name, self, place=place_of_declaration())
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

        Raises BadDay for an author's mistake in the file, and OSError where it cannot be read.
        """
        if self.hints_file is None:
            return {}
        hints = read_hints(self.hints_file)
        functions = [function.name for function in self.functions]
        for name in hints:
            if name not in functions:
                hint = suggest_name(name, functions, "; its functions are: {}")
                text = self.hints_file.read_text(encoding="utf-8")
                line = line_of_setting(text, (name, "hints", "0"))
                reason = f"{self.stem} has no function {name!r}{hint}"
                raise BadDay(str(self.hints_file), line, reason)
        return hints

    @property
    def number(self) -> str:
        """The "04" of `04_modifying_training_loop_gpu`."""
        return self.stem.partition("_")[0]
