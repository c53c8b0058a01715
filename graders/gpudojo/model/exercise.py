"""Exercises, functions, probes, checks, and named misconceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, overload

from gpudojo.model.evidence import Observation


def called(kind: str) -> str:
    """In words: "a list", "an int", "an ndarray", and "None" for a NoneType."""
    if kind == "NoneType":
        return "None"
    vowel = kind[:1].lower() in tuple("aeiou") or kind == "ndarray"  # spoken "en-dee-array"
    return f"{'an' if vowel else 'a'} {kind}"


@dataclass(frozen=True)
class Misconception:
    name: str
    why: str
    at: tuple[str, ...] = ()  # what shows it in the source, where nothing recorded tells the line: see probes.signs
    cause: tuple[str, ...] = ()  # signs that are the mistake itself, better than the line at which it came to light


class Failed(Exception):
    """Raised by a check whose claim does not hold."""

    def __init__(
        self,
        happened: str,
        expected: str,
        line: int | None = None,
        misconception: str | None = None,
        at: tuple[str, ...] = (),  # where no line is known: signs of it in the source, see probes.signs
    ) -> None:
        super().__init__(happened)
        self.happened = happened
        self.expected = expected
        self.line = line
        self.misconception = misconception
        self.at = at


class Todo(Exception):
    """Raised by a check whose part of the work has not been begun; it may say which part that is."""


Seen = Mapping[str, Observation]  # what each probe saw, by the probe's name
Look = Callable[[Any], dict[str, Any]]  # gets a probes.Call
Judge = Callable[[Seen, Seen], None]  # (student's, reference's); raises Failed
OTHERS: Final = ("one gpu", "two gpus", "mac", "laptop")  # machines that are never the one with the real GPU


@dataclass(frozen=True)
class Probe:
    """Calls the student's function on a scenario and describes what came out. Produces evidence, no opinion."""

    name: str
    look: Callable[[Any], dict[str, Any]]  # gets a probes.Call
    machine: str = "bench"  # which machine it needs: see probes.machines

    @property
    def elsewhere(self) -> bool:
        """Whether it looks on a machine that a process with a real GPU cannot be; a reference's tries out several."""
        return self.machine in (*OTHERS, "reference")


@dataclass(frozen=True)
class Check:
    """One claim; its docstring is the line the student reads."""

    name: str
    claim: str
    points: float
    judge: Judge
    needs: tuple[str, ...] = ()  # checks of the same function that have to pass first


@dataclass(frozen=True)
class Advice:
    """What helps with a certain mistake, or where a certain check fails."""

    hint: int | None = None  # which one to read first, counted from 1
    at: tuple[str, ...] = ()  # signs of it in the source: see probes.signs


def sign(function: str, what: str) -> str:
    """The name under which the line of a sign is kept, beside those of names; no name has a space."""
    return f"{function} {what}"


@dataclass
class Function:
    """One function students write."""

    name: str
    hints: tuple[str, ...]
    probes: list[Probe] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    advice: dict[str, Advice] = field(default_factory=dict)  # by a misconception, or by the name of a check

    def when(self, *keys: str, hint: int | None = None, at: tuple[str, ...] = ()) -> None:
        """Say what helps with these mistakes, or where these checks fail."""
        for key in keys:
            self.advice[key] = Advice(hint, at)

    def hints_for(self, *keys: str | None) -> tuple[str, ...]:
        """All hints, and first the one for the first of these mistakes and checks that has one."""
        first = next((a.hint for key in keys if key is not None and (a := self.advice.get(key)) and a.hint), 1)
        return (self.hints[first - 1], *self.hints[: first - 1], *self.hints[first:]) if self.hints else ()

    def signs_for(self, *keys: str | None) -> tuple[str, ...]:
        """What to look for in the source, the most telling first."""
        return tuple(what for key in keys if key is not None and key in self.advice for what in self.advice[key].at)

    @overload
    def probe(self, look: Look, *, machine: str = ...) -> Look: ...
    @overload
    def probe(self, *, machine: str) -> Callable[[Look], Look]: ...
    def probe(self, look: Look | None = None, *, machine: str = "bench") -> Any:
        """Declare a probe; it is known by its function's name."""

        def declare(function: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
            self.probes.append(Probe(function.__name__, function, machine))
            return function

        return declare if look is None else declare(look)

    def check(self, points: float, needs: tuple[str, ...] = ("runs",)) -> Callable[[Judge], Judge]:
        """Declare a check; its name is its function's, its claim the docstring."""

        def declare(judge: Judge) -> Judge:
            claim = " ".join((judge.__doc__ or "").split())
            if not claim:
                raise ValueError(f"the check {judge.__name__} of {self.name} has no docstring for the student to read")
            self.checks.append(Check(judge.__name__, claim, points, judge, needs))
            return judge

        return declare

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks)


@dataclass
class Exercise:
    """One student file."""

    stem: str  # "04_modifying_training_loop_gpu"
    title: str
    points: int
    reading: tuple[str, ...] = ()
    functions: list[Function] = field(default_factory=list)

    def function(self, name: str, *hints: str) -> Function:
        made = Function(name, hints)
        self.functions.append(made)
        return made

    @property
    def number(self) -> str:
        return self.stem.partition("_")[0]
