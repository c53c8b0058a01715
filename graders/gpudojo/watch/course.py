"""The student's exercises of one day, and what is known of each and kept until the next time."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from virtual_cuda.ledger import Timeline

from gpudojo import __version__
from gpudojo.grading.bindings import find_bindings
from gpudojo.grading.engine import result_of
from gpudojo.grading.feedback import ExercisePoints
from gpudojo.grading.references import reference_of
from gpudojo.grading.sources import Unparsable, decode_source, parse_source
from gpudojo.model.catalogue import day_names, day_of_file, day_title, exercises_of, source_files
from gpudojo.model.courses import describe_not_installed
from gpudojo.model.errors import NoExercises, NoReference
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult, Outcome, sum_points
from gpudojo.watch.changes import functions_to_grade

PROGRESS_FILE: Final = Path(".dojo", "watch.json")  # in the student's folder
# Outcomes in the order to look at them; a check that is blocked comes by itself.
# What is blocked comes last: where nothing else is to fix, it could not be judged.
OUTCOMES_TO_FIX: Final = (Outcome.FAILED, Outcome.TODO, Outcome.ERROR, Outcome.BLOCKED)


class SkippedBreakpoint(msgspec.Struct, frozen=True):
    """A breakpoint at which a debugger would have stopped, if it had a terminal."""

    function: str
    line: int


class BusiestCalls(NamedTuple):
    """What the busiest call of a function did, and the same call of the reference."""

    yours: Timeline
    theirs: Timeline | None


@dataclass
class ExerciseWork:
    """One exercise: the student's file, and what is known of it."""

    exercise: Exercise
    path: Path
    text: str | None = None  # as it was read last; None if it cannot be read
    graded: str | None = None  # the last text that Python could read, which the results are about
    broken: Raised | None = None  # why the text cannot be graded
    # The error that ended the file after the graded functions were defined.
    stopped: Raised | None = None
    # By function: results, the text that was graded, what was printed, timelines.
    results: dict[str, list[CheckResult]] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    timelines: dict[str, BusiestCalls] = field(default_factory=dict)
    last: str = ""  # the function that was graded last
    breakpoint: SkippedBreakpoint | None = None  # the first in the text that was graded last

    @property
    def stem(self) -> str:
        """The name of the exercise's file without its ending."""
        return self.exercise.stem

    @property
    def names(self) -> list[str]:
        """The names of the exercise's functions."""
        return [function.name for function in self.exercise.functions]

    def count_points(self, name: str | None = None) -> ExercisePoints:
        """The points and outcomes of the exercise, or of one of its functions.

        There are none while Python cannot read the file.
        """
        row = ExercisePoints(self.stem)
        is_readable = self.text is not None and self.broken is None
        for function in self.exercise.functions:
            if name not in (None, function.name):
                continue
            results_by_check = {}
            if is_readable:
                for result in self.results.get(function.name, []):
                    results_by_check[result.check] = result
            for check in function.checks:
                result_of_check = results_by_check.get(check.name)
                row.add_check(check.points, result_of_check)
        return row

    @property
    def state(self) -> str:
        """The state in a word: `missing`, `broken`, `unknown`, `to do`, `begun` or `done`."""
        if self.text is None:
            return "missing"
        if self.broken is not None:
            return "broken"
        if not self.results:
            return "unknown"
        state = self.count_points().state
        if state in ("done", "to do"):
            return state
        return "begun"

    @property
    def first(self) -> CheckResult | None:
        """The first thing to fix. Returns None if there is nothing."""
        results = []
        for name in self.names:
            results += self.results.get(name, [])
        for outcome in OUTCOMES_TO_FIX:
            for result in results:
                if result.outcome is outcome:
                    return result
        return None

    @property
    def has_model_solution(self) -> bool:
        """True if there is a reference above the file; a release has none."""
        try:
            reference_of(self.path)
        except NoReference:
            return False
        return True

    def read_file(self) -> list[str]:
        """Read the file again, and note for each stub in it that its checks are to do.

        Returns the functions to grade: those that a change concerns, and those without a result.
        Stubs are none of them, but for the first one of a changed file that holds nothing else to
        grade. There are none if Python cannot read the file: then `broken` says why, or `text` is
        None.
        Raises nothing.
        """
        try:
            text = decode_source(self.path.read_bytes())
        except OSError:
            self.text = None
            self.broken = None
            return []
        except Unparsable as error:
            # The last text is kept, and the line is none of it.
            self.text = self.text or ""
            self.broken = msgspec.structs.replace(error.evidence, line=None)
            return []
        self.text = text
        self.broken = None
        try:
            tree = parse_source(text, self.path)
        except Unparsable as error:
            self.broken = error.evidence
            return []
        saved_again = self.graded is not None
        names = self._names_to_grade(self.graded, self.text)
        if names:
            self.breakpoint = None
        self.graded = self.text
        stubs = {name for name, _, is_stub in find_bindings(tree) if is_stub}
        for function in self.exercise.functions:
            if function.name in stubs:  # known without running anything
                results = self._results_to_do(function)
                self.note_verdict(function.name, results)
        written = [name for name in names if name not in stubs]
        if saved_again and not written:
            # One stub of a file that has changed: the file may stop when it is run.
            written = names[:1]
        return written

    def _names_to_grade(self, before: str | None, after: str) -> list[str]:
        """The functions that a change of the text concerns, and those without a result."""
        if before is None:
            return self.names
        finished = set()
        for name in self.results:
            if self.count_points(name).state == "done":
                finished.add(name)
        names = functions_to_grade(before, after, self.names, finished)
        for name in self.names:
            if name not in names and name not in self.results:
                names.append(name)
        return names

    def _results_to_do(self, function: Function) -> list[CheckResult]:
        """The results of a function that is still a stub."""
        results = []
        for check in function.checks:
            result = result_of(self.exercise, function, check, Outcome.TODO)
            results.append(result)
        return results

    def note_verdict(
        self,
        name: str,
        results: list[CheckResult],
        text: str | None = None,
        printed: str = "",
        stopped: Raised | None = None,
    ) -> None:
        """Note the verdict on a function, which was graded last. Forgets its timelines.

        `text` is the text that was graded, by default the last one that Python could read.
        `printed` is what the function printed, `stopped` the error that ended the file later.
        """
        self.results[name] = results
        self.printed[name] = printed
        self.stopped = stopped
        self.last = name
        self.timelines.pop(name, None)
        self.about[name] = self.graded or ""
        if text is not None:
            self.about[name] = text


class RememberedWork(msgspec.Struct):
    """The verdicts on one file, and the digest of the text they are about."""

    digest: str
    results: dict[str, list[CheckResult]]


class KeptProgress(msgspec.Struct):
    """What is remembered until the next time."""

    current: str = ""
    dark: bool | None = None  # None: the student has not chosen
    made_by: str = ""  # verdicts of other versions are not used
    works: dict[str, RememberedWork] = {}


class DayFolder(NamedTuple):
    """A day, and the student's folder with its files."""

    day: str
    folder: Path


class Course:
    """The exercises of one day in the student's folder. `current` is the one the student is at.

    Raises NoExercises if there are none in the folder or file `start`.
    """

    def __init__(self, start: Path) -> None:
        """Read the files of the day, and what was kept of the last time.

        Raises NoExercises where there are none, BadDay where the day cannot be imported, and
        OSError where its own files cannot be read.
        """
        self.day, self.folder = _find_day(start)
        self.works: list[ExerciseWork] = []
        for exercise in exercises_of(self.day):
            path = self.folder / f"{exercise.stem}.py"
            self.works.append(ExerciseWork(exercise, path))
        self.dark: bool | None = None
        self.finished: ExerciseWork | None = None  # the one that became green just now
        self.pending: dict[str, list[str]] = {}  # the functions to grade, by exercise
        stem = self._read_progress().current
        if start.is_file():
            stem = start.stem
        self.current = self._work_to_begin_with(stem)

    def _work_to_begin_with(self, stem: str) -> ExerciseWork:
        """The exercise of that name, or else the first that is not done."""
        for work in self.works:
            if work.stem == stem:
                return work
        for work in self.works:
            if work.state != "done" and work.text is not None:
                return work
        return self.works[0]

    @property
    def title(self) -> str:
        """The title of the day. Raises BadDay where it cannot be imported."""
        return day_title(self.day)

    @property
    def done(self) -> bool:
        """True if every check of the day passes."""
        return all(work.state == "done" for work in self.works)

    @property
    def score(self) -> tuple[float, float]:
        """The points of the day, and how many there are."""
        points = []
        most = []
        for work in self.works:
            row = work.count_points()
            points.append(row.points)
            most.append(row.max_points)
        return sum_points(points), sum_points(most)

    def work_after(self, work: ExerciseWork) -> ExerciseWork | None:
        """The next exercise that is not done. Returns None if there is no other.

        After the last one it goes on from the beginning. Files that are missing are left out.
        """
        index = self.works.index(work)
        others = [*self.works[index + 1 :], *self.works[:index]]
        for following in others:
            if following.state not in ("done", "missing"):
                return following
        return None

    def move_to(self, work: ExerciseWork, finished: ExerciseWork | None = None) -> None:
        """Make an exercise the current one, and write that to the file of the progress.

        `finished` is the exercise that became green just now. Raises BadDay or OSError where the
        day's own files cannot be read.
        """
        self.current = work
        self.finished = finished
        self.write_progress()

    def write_progress(self) -> None:
        """Write where the student is, and the verdicts, to a file in the student's folder.

        If the folder cannot be written to, nothing is kept. Raises BadDay or OSError where the
        day's own files cannot be read.
        """
        works = {}
        for work in self.works:
            if work.graded and work.stem not in self.pending:
                digest = self._digest_of(work)
                works[work.stem] = RememberedWork(digest, work.results)
        kept = KeptProgress(self.current.stem, self.dark, _versions_of_graders(), works)
        path = self.folder / PROGRESS_FILE
        gitignore = path.with_name(".gitignore")
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            gitignore.write_text("*\n", encoding="utf-8")
            new_file = path.with_suffix(f".{os.getpid()}")
            new_file.write_bytes(msgspec.json.encode(kept))
            new_file.replace(path)

    def _read_progress(self) -> KeptProgress:
        """Read what was kept, and every exercise file.

        Verdicts on texts that have not changed are taken over; the rest becomes `pending`. A
        damaged file counts as none. Raises BadDay or OSError where the day's own files cannot be
        read.
        """
        kept = KeptProgress()
        # A damaged file is no reason not to begin.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            path = self.folder / PROGRESS_FILE
            data = path.read_bytes()
            kept = msgspec.json.decode(data, type=KeptProgress)
        self.dark = kept.dark
        for work in self.works:
            names = work.read_file()
            remembered = kept.works.get(work.stem)
            if remembered is not None and kept.made_by == _versions_of_graders():
                self._take_over(work, remembered)
                names = [name for name in names if name not in work.results]
            if names:
                self.pending[work.stem] = names
        return kept

    def _take_over(self, work: ExerciseWork, remembered: RememberedWork) -> None:
        """Note remembered verdicts in an exercise, if they are about this text and these checks.

        Raises BadDay or OSError where the day's own files cannot be read.
        """
        if remembered.digest != self._digest_of(work):
            return
        for function in work.exercise.functions:
            results = remembered.results.get(function.name, [])
            judged = [result.check for result in results]
            declared = [check.name for check in function.checks]
            if judged and judged == declared:
                work.note_verdict(function.name, results)

    def _digest_of(self, work: ExerciseWork) -> str:
        """A digest of what verdicts depend on: the student's text, and the exercise itself.

        Raises BadDay or OSError where the day's own files cannot be read.
        """
        text = work.graded or ""
        digest = hashlib.sha256(text.encode())
        for path in source_files(self.day, work.exercise):
            digest.update(path.read_bytes())
        return digest.hexdigest()


def _find_day(start: Path) -> DayFolder:
    """The day of a file, or of a folder: here, in `DAY` or in `exercises/DAY`.

    Raises NoExercises if no file of a day is there, and BadDay where a day cannot be imported.
    """
    if start.is_file():
        own = day_of_file(start)
        if own is not None:
            return DayFolder(own, start.resolve().parent)
    for name in day_names():
        for folder in (start, start / name, start / "exercises" / name):
            if _has_exercise_of(name, folder):
                return DayFolder(name, folder.resolve())
    raise NoExercises(str(start), _advice_on_folder(start))


def _advice_on_folder(start: Path) -> str:
    """What to do where a file or folder has no exercises of an installed day."""
    not_installed = describe_not_installed(start)
    if not_installed:
        return not_installed
    for name in day_names():
        return f"name the folder that has them, such as exercises/{name}"
    return "no day is installed"


def _has_exercise_of(day: str, folder: Path) -> bool:
    """True if a file of this day is in the folder. Raises BadDay where it cannot be imported."""
    stems = [exercise.stem for exercise in exercises_of(day)]
    return any((folder / f"{stem}.py").is_file() for stem in stems)


def _versions_of_graders() -> str:
    """The versions that verdicts depend on."""
    version_of_torch = importlib.metadata.version("torch")
    return f"gpudojo {__version__}, torch {version_of_torch}"
