"""How is an exercise declared? A file, its functions, and for each the probes that look and the checks that judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, overload

from graders.evidence import Observation

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


@dataclass
class Function:
    """One function students write."""

    name: str
    hints: tuple[str, ...]
    probes: list[Probe] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

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
