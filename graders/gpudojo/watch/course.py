"""The student's exercises, and what is known of each: its text, its verdicts, what to fix first; and what is kept."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from virtual_cuda.ledger import Timeline

from gpudojo import __version__
from gpudojo.grading.judge import result_of
from gpudojo.grading.load import Unparsable, bindings, decode, is_demo, parse
from gpudojo.grading.wording import ExercisePoints
from gpudojo.model.catalogue import day, day_of, days, sources, title
from gpudojo.model.errors import NoExercises
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import CheckResult, Outcome, total

MEMORY: Final = Path(".dojo", "watch.json")  # in the student's folder
FIRST: Final = (Outcome.FAILED, Outcome.TODO, Outcome.ERROR)  # what to look at first; what is blocked comes by itself


@dataclass
class Work:
    """One exercise: the student's file, and what is known of it."""

    exercise: Exercise
    path: Path
    text: str | None = None  # as it was read last; None where it cannot be read
    graded: str | None = None  # the last text that Python could read, which the results are about
    broken: Raised | None = None  # why the text cannot be graded
    stopped: Raised | None = None  # the error that ended the file after the graded functions were defined
    results: dict[str, list[CheckResult]] = field(default_factory=dict)  # by function, as the next two
    printed: dict[str, str] = field(default_factory=dict)
    timelines: dict[str, tuple[Timeline, Timeline | None]] = field(default_factory=dict)
    last: str = ""  # the function that was graded last

    @property
    def stem(self) -> str:
        return self.exercise.stem

    @property
    def names(self) -> list[str]:
        return [function.name for function in self.exercise.functions]

    def points(self, function: str | None = None) -> ExercisePoints:
        """The points of the exercise, or of one of its functions."""
        row = ExercisePoints(self.stem)
        for each in self.exercise.functions:
            if function in (None, each.name):
                found = {result.check: result for result in self.results.get(each.name, ())}
                for check in each.checks:
                    row.add(check.points, found.get(check.name))
        return row

    @property
    def state(self) -> str:
        """`missing`, `broken`, `unknown`, `to do`, `begun` or `done`."""
        if self.text is None:
            return "missing"
        if self.broken is not None:
            return "broken"
        state = self.points().state if self.results else "unknown"
        return state if state in ("done", "to do", "unknown") else "begun"

    @property
    def first(self) -> CheckResult | None:
        """The first thing to fix; None where nothing is."""
        every = [result for name in self.names for result in self.results.get(name, ())]
        return next((result for outcome in FIRST for result in every if result.outcome is outcome), None)

    def read(self) -> list[str]:
        """Reads the file again. Returns the functions to grade; none of a text that has no change, or an error."""
        try:
            self.text, self.broken = decode(self.path.read_bytes()), None
            tree = parse(self.text, self.path)
        except OSError:
            self.text, self.broken = None, None
            return []
        except Unparsable as error:
            self.text, self.broken = self.text or "", error.evidence
            return []
        before, self.graded = self.graded, self.text
        finished = {name for name in self.results if self.points(name).state == "done"}
        names = list(self.names) if before is None else to_grade(before, self.text, self.names, finished)
        names += [name for name in self.names if name not in names and name not in self.results]
        stubs = {name: stub for name, _, stub in bindings(tree)}
        for function in self.exercise.functions:
            if stubs.get(function.name):  # known without running anything
                todo = (result_of(self.exercise, function, check, Outcome.TODO) for check in function.checks)
                self.take(function.name, list(todo))
        return [name for name in names if not stubs.get(name)]

    def take(self, function: str, results: list[CheckResult], printed: str = "", stopped: Raised | None = None) -> None:
        """Notes the verdict on a function."""
        self.results[function], self.printed[function], self.stopped, self.last = results, printed, stopped, function
        self.timelines.pop(function, None)


def to_grade(before: str, after: str, names: Sequence[str], finished: Collection[str] = ()) -> list[str]:
    """The functions whose verdict may be another after a change of their file: first those that were changed.

    After a change of anything but these functions, all. One that only has other line numbers needs no new verdict if
    nothing is left to fix in it.
    """
    old, new = _Parts(before, names), _Parts(after, names)
    found = [name for name in names if old.code.get(name) != new.code.get(name)]
    if old.rest != new.rest:
        found += names
    for name in found:  # which grows meanwhile
        found += [user for user in names if name in new.uses.get(user, ()) and user not in found]
    found += [name for name in names if old.places.get(name) != new.places.get(name) and name not in finished]
    return list(dict.fromkeys(found))


class _Parts:
    """A file's functions, and the rest of it, as syntax trees that can be compared."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.code: dict[str, list[str]] = {}
        self.places: dict[str, list[str]] = {}  # the same, with line numbers
        self.uses: dict[str, set[str]] = {}  # the names in it
        self.rest: list[str] = []
        for statement in ast.parse(text).body:
            name = _bound(statement)
            if name not in names:
                self.rest += [] if is_demo(statement) else [ast.dump(statement)]
                continue
            self.code.setdefault(name, []).append(ast.dump(statement))
            self.places.setdefault(name, []).append(ast.dump(statement, include_attributes=True))
            inside = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            self.uses.setdefault(name, set()).update(inside - {name})


def _bound(statement: ast.stmt) -> str:
    """The one name that a definition or an assignment is for."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return statement.name
    targets: list[ast.expr] = []
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


class RememberedWork(msgspec.Struct):
    """The verdicts on one file, and the digest of the text they are about."""

    digest: str
    results: dict[str, list[CheckResult]]


class Memory(msgspec.Struct):
    """What is remembered until the next time."""

    current: str = ""
    dark: bool | None = None  # None: the student has not chosen
    made_by: str = ""  # verdicts of other versions are not used
    works: dict[str, RememberedWork] = {}


class Course:
    """The exercises of one day in the student's folder. `current` is the one the student is at."""

    def __init__(self, start: Path) -> None:
        self.day, self.folder = _found(start)
        self.works = [Work(exercise, self.folder / f"{exercise.stem}.py") for exercise in day(self.day)]
        self.dark: bool | None = None
        self.finished: Work | None = None  # the one that became green just now
        self.pending: dict[str, list[str]] = {}  # the functions to grade, by exercise
        kept = self._remembered()
        here = start.stem if start.is_file() else kept.current
        begun = (work for work in self.works if work.state != "done" and work.text is not None)
        self.current = next((work for work in self.works if work.stem == here), None) or next(begun, self.works[0])

    @property
    def title(self) -> str:
        return title(self.day)

    @property
    def done(self) -> bool:
        return all(work.state == "done" for work in self.works)

    @property
    def score(self) -> tuple[float, float]:
        rows = [work.points() for work in self.works]
        return total(row.points for row in rows), total(row.max_points for row in rows)

    def work_at(self, path: Path) -> Work | None:
        return next((work for work in self.works if work.path == path), None)

    def after(self, work: Work) -> Work | None:
        """The next exercise that is not done, from the beginning again after the last one; None where all are."""
        place = self.works.index(work)
        rest = (*self.works[place + 1 :], *self.works[:place])
        return next((each for each in rest if each.state not in ("done", "missing")), None)

    def move(self, work: Work, finished: Work | None = None) -> None:
        self.current, self.finished = work, finished
        self.remember()

    def remember(self) -> None:
        """Keeps where the student is, and the verdicts. Where the folder cannot be written to, nothing is kept."""
        whole = [work for work in self.works if work.graded and work.stem not in self.pending]
        works = {work.stem: RememberedWork(self._digest(work), work.results) for work in whole}
        kept = Memory(self.current.stem, self.dark, _versions(), works)
        path = self.folder / MEMORY
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_bytes(msgspec.json.encode(kept))
            beside.replace(path)

    def _remembered(self) -> Memory:
        """What was kept; the verdicts on texts that have not changed are taken over, and the rest is to be graded."""
        kept = Memory()
        with contextlib.suppress(OSError, msgspec.DecodeError):  # a damaged file is no reason not to begin
            kept = msgspec.json.decode((self.folder / MEMORY).read_bytes(), type=Memory)
        self.dark = kept.dark
        for work in self.works:
            names = work.read()
            known = kept.works.get(work.stem)
            if known and kept.made_by == _versions() and known.digest == self._digest(work):
                fitting = {f.name: [c.name for c in f.checks] for f in work.exercise.functions}
                found = known.results.items()
                work.results |= {name: rs for name, rs in found if [r.check for r in rs] == fitting.get(name)}
                names = [name for name in names if name not in work.results]
            if names:
                self.pending[work.stem] = names
        return kept

    def _digest(self, work: Work) -> str:
        """Of what the verdicts depend on: the student's text, and the exercise itself."""
        found = hashlib.sha256((work.graded or "").encode())
        for path in sources(self.day, work.exercise):
            found.update(path.read_bytes())
        return found.hexdigest()


def _found(start: Path) -> tuple[str, Path]:
    """The day, and the folder with its files: here, in `DAY` or in `exercises/DAY`. Raises NoExercises."""
    if start.is_file() and (own := day_of(start)) is not None:
        return own, start.resolve().parent
    for name in days():
        for folder in (start, start / name, start / "exercises" / name):
            if any((folder / f"{exercise.stem}.py").is_file() for exercise in day(name)):
                return name, folder.resolve()
    raise NoExercises(str(start))


def _versions() -> str:
    return f"gpudojo {__version__}, torch {importlib.metadata.version('torch')}"
