"""The student's exercises and what is known of each; sees what is saved, and has it graded."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec
from virtual_cuda.ledger import Timeline

from gpudojo import __version__
from gpudojo.grading.engine import result_of
from gpudojo.grading.feedback import ExercisePoints
from gpudojo.grading.limits import DEFAULT_SECONDS
from gpudojo.grading.load import Unparsable, bindings, decode_source, is_demo, parse_source
from gpudojo.grading.references import PUBLIC_SEEDS
from gpudojo.model.catalogue import day_names, day_of_file, day_title, exercises_of, source_files
from gpudojo.model.errors import NoExercises
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Exercise, Failed
from gpudojo.model.results import CheckResult, Outcome, sum_points
from gpudojo.watch.standby import Drawn, Ended, Frame, Ready, Standby, StandbyJob, StandbyResult

MEMORY: Final = Path(".dojo", "watch.json")  # in the student's folder
FIRST: Final = (
    Outcome.FAILED,
    Outcome.TODO,
    Outcome.ERROR,
)  # what to look at first; what is blocked comes by itself


@dataclass
class ExerciseWork:
    """One exercise: the student's file, and what is known of it."""

    exercise: Exercise
    path: Path
    text: str | None = None  # as it was read last; None where it cannot be read
    graded: str | None = None  # the last text that Python could read, which the results are about
    broken: Raised | None = None  # why the text cannot be graded
    stopped: Raised | None = (
        None  # the error that ended the file after the graded functions were defined
    )
    results: dict[str, list[CheckResult]] = field(
        default_factory=dict
    )  # by function, as the next three
    about: dict[str, str] = field(default_factory=dict)  # the text that was graded
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
        """The points of the exercise, or of one of its functions; none while Python cannot read the file."""
        row = ExercisePoints(self.stem)
        known = self.text is not None and self.broken is None
        for each in self.exercise.functions:
            if function in (None, each.name):
                found = {
                    result.check: result for result in self.results.get(each.name, ()) if known
                }
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
        return next(
            (result for outcome in FIRST for result in every if result.outcome is outcome), None
        )

    def read(self) -> list[str]:
        """Reads the file again. Returns the functions to grade; none of a text that has no change, or an error."""
        try:
            self.text = decode_source(self.path.read_bytes())
            self.broken = None
            tree = parse_source(self.text, self.path)
        except OSError:
            self.text = None
            self.broken = None
            return []
        except Unparsable as error:
            self.text, self.broken = self.text or "", error.evidence
            return []
        before = self.graded
        self.graded = self.text
        finished = {name for name in self.results if self.points(name).state == "done"}
        names = (
            list(self.names)
            if before is None
            else to_grade(before, self.text, self.names, finished)
        )
        names += [name for name in self.names if name not in names and name not in self.results]
        stubs = {name: stub for name, _, stub in bindings(tree)}
        for function in self.exercise.functions:
            if stubs.get(function.name):  # known without running anything
                todo = (
                    result_of(self.exercise, function, check, Outcome.TODO)
                    for check in function.checks
                )
                self.take(function.name, list(todo))
        return [name for name in names if not stubs.get(name)]

    def take(
        self,
        function: str,
        results: list[CheckResult],
        printed: str = "",
        stopped: Raised | None = None,
    ) -> None:
        """Notes the verdict on a function."""
        self.results[function] = results
        self.printed[function] = printed
        self.stopped = stopped
        self.last = function
        self.timelines.pop(function, None)
        self.about[function] = self.graded or ""


def to_grade(
    before: str, after: str, names: Sequence[str], finished: Collection[str] = ()
) -> list[str]:
    """The functions whose verdict may be another after a change of their file: first those that were changed.

    After a change of anything but these functions, all. One that only has other line numbers needs no new verdict if
    nothing is left to fix in it.
    """
    old = _Parts(before, names)
    new = _Parts(after, names)
    found = [name for name in names if old.code.get(name) != new.code.get(name)]
    if old.rest != new.rest:
        found += names
    for name in found:  # which grows meanwhile
        found += [user for user in names if name in new.uses.get(user, ()) and user not in found]
    found += [
        name
        for name in names
        if old.places.get(name) != new.places.get(name) and name not in finished
    ]
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


class KeptProgress(msgspec.Struct):
    """What is remembered until the next time."""

    current: str = ""
    dark: bool | None = None  # None: the student has not chosen
    made_by: str = ""  # verdicts of other versions are not used
    works: dict[str, RememberedWork] = {}


class Course:
    """The exercises of one day in the student's folder. `current` is the one the student is at."""

    def __init__(self, start: Path) -> None:
        self.day, self.folder = _found(start)
        self.works = [
            ExerciseWork(exercise, self.folder / f"{exercise.stem}.py")
            for exercise in exercises_of(self.day)
        ]
        self.dark: bool | None = None
        self.finished: ExerciseWork | None = None  # the one that became green just now
        self.pending: dict[str, list[str]] = {}  # the functions to grade, by exercise
        kept = self._remembered()
        here = start.stem if start.is_file() else kept.current
        begun = (work for work in self.works if work.state != "done" and work.text is not None)
        self.current = next((work for work in self.works if work.stem == here), None) or next(
            begun, self.works[0]
        )

    @property
    def title(self) -> str:
        return day_title(self.day)

    @property
    def done(self) -> bool:
        return all(work.state == "done" for work in self.works)

    @property
    def score(self) -> tuple[float, float]:
        rows = [work.points() for work in self.works]
        return sum_points(row.points for row in rows), sum_points(row.max_points for row in rows)

    def work_at(self, path: Path) -> ExerciseWork | None:
        return next((work for work in self.works if work.path == path), None)

    def after(self, work: ExerciseWork) -> ExerciseWork | None:
        """The next exercise that is not done, from the beginning again after the last one; None where all are."""
        place = self.works.index(work)
        rest = (*self.works[place + 1 :], *self.works[:place])
        return next((each for each in rest if each.state not in ("done", "missing")), None)

    def move(self, work: ExerciseWork, finished: ExerciseWork | None = None) -> None:
        self.current = work
        self.finished = finished
        self.remember()

    def remember(self) -> None:
        """Keeps where the student is, and the verdicts. Where the folder cannot be written to, nothing is kept."""
        whole = [work for work in self.works if work.graded and work.stem not in self.pending]
        works = {work.stem: RememberedWork(self._digest(work), work.results) for work in whole}
        kept = KeptProgress(self.current.stem, self.dark, _versions(), works)
        path = self.folder / MEMORY
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_bytes(msgspec.json.encode(kept))
            beside.replace(path)

    def _remembered(self) -> KeptProgress:
        """What was kept; the verdicts on texts that have not changed are taken over, and the rest is to be graded."""
        kept = KeptProgress()
        with contextlib.suppress(
            OSError, msgspec.DecodeError
        ):  # a damaged file is no reason not to begin
            kept = msgspec.json.decode((self.folder / MEMORY).read_bytes(), type=KeptProgress)
        self.dark = kept.dark
        for work in self.works:
            names = work.read()
            known = kept.works.get(work.stem)
            if known and kept.made_by == _versions() and known.digest == self._digest(work):
                fitting = {f.name: [c.name for c in f.checks] for f in work.exercise.functions}
                found = known.results.items()
                for name, results in found:
                    if [result.check for result in results] == fitting.get(name):
                        work.take(name, results)
                names = [name for name in names if name not in work.results]
            if names:
                self.pending[work.stem] = names
        return kept

    def _digest(self, work: ExerciseWork) -> str:
        """Of what the verdicts depend on: the student's text, and the exercise itself."""
        found = hashlib.sha256((work.graded or "").encode())
        for path in source_files(self.day, work.exercise):
            found.update(path.read_bytes())
        return found.hexdigest()


def _found(start: Path) -> tuple[str, Path]:
    """The day, and the folder with its files: here, in `DAY` or in `exercises/DAY`. Raises NoExercises."""
    if start.is_file() and (own := day_of_file(start)) is not None:
        return own, start.resolve().parent
    for name in day_names():
        for folder in (start, start / name, start / "exercises" / name):
            if any((folder / f"{exercise.stem}.py").is_file() for exercise in exercises_of(name)):
                return name, folder.resolve()
    raise NoExercises(str(start))


def _versions() -> str:
    return f"gpudojo {__version__}, torch {importlib.metadata.version('torch')}"


HANGING: Final = (
    2 * DEFAULT_SECONDS + 5
)  # seconds without a frame, after which the process is ended: loading, a call, and some
SOON: Final = 1.0  # seconds of a run, after which a new spare is started: the run may have no end
QUIET: Final = 15  # milliseconds without a change, after which a file counts as saved
POLLING: Final = 0.2  # seconds between two looks, where watchfiles is not installed

# `begun`: something is being graded; `verdict`: all of the file that was saved is; `changed`: anything else to show.
Event = Literal["begun", "verdict", "changed"]


class Session:
    """Grades at the beginning what is not known, and then what is saved.

    `loop` does it, and calls `show` in its own thread for everything that there is to show. Other methods may be
    called from any thread.
    """

    def __init__(
        self,
        course: Course,
        show: Callable[[Event, ExerciseWork], None],
        kind: str = "auto",
        seed: int = PUBLIC_SEEDS[0],
    ) -> None:
        self.course = course
        self.kind = kind
        self.seed = seed
        self.running: Standby | None = None
        self.saved_at = self.took = 0.0  # when something was saved, and seconds until its verdict
        self.trouble = ""  # why no process can be started
        self._show = show
        self._spare: Standby | None = None
        self.heard = 0.0  # when the running process began, or sent its last frame
        self._asked: ExerciseWork | None = None  # whose verdict the student waits for
        self._events: queue.SimpleQueue[set[Path] | ExerciseWork | tuple[Standby, Frame] | None] = (
            queue.SimpleQueue()
        )
        self._closed = threading.Event()

    @property
    def ready(self) -> bool:
        return self._spare is not None and self._spare.ready

    def save(self, paths: Iterable[Path]) -> None:
        """Tells that files were saved."""
        self._events.put(set(paths))

    def again(self, work: ExerciseWork) -> None:
        """Grades all functions of an exercise again."""
        self._events.put(work)

    def close(self) -> None:
        """Ends `loop` and `watch`."""
        self._closed.set()
        self._events.put(None)

    def watch(self) -> None:
        """Tells what is saved in the folder until the session is closed."""
        with contextlib.suppress(FileNotFoundError):  # the folder itself was removed
            for paths in saves(self.course.folder, self._closed):
                self.save(paths)

    def loop(self) -> None:
        """Until the session is closed."""
        threading.Thread(target=self.watch, name="gpudojo saves", daemon=True).start()
        self._spare = self._standby()
        self._wait_for(self.course.current)
        try:
            while not self._closed.is_set():
                try:
                    event = self._events.get(timeout=0.1 if self.running else None)
                except queue.Empty:
                    self._look_at_clock()
                    continue
                match event:
                    case set():
                        self._saved(event)
                    case ExerciseWork():
                        self.saved_at = time.perf_counter()
                        self._put(event, event.names)
                        self._interrupt()
                        self._wait_for(event)
                    case (Standby() as process, frame):
                        self._frame(process, frame)
        finally:
            for left in (self.running, self._spare):
                if left is not None:
                    left.close()
            self.course.remember()

    def _saved(self, paths: set[Path]) -> None:
        now = time.perf_counter()
        changed = []
        for work in (work for work in self.course.works if work.path in paths):
            before, names = (work.text, work.broken), work.read()
            if (
                work.text,
                work.broken,
            ) != before:  # of a file that is not UTF-8, the last text is kept
                changed.append(work)
                self._put(work, names)
        if changed:
            self.course.move(changed[0])
        elif paths.isdisjoint(
            work.path for work in self.course.works
        ):  # modules that the student's file may import
            self._put(self.course.current, self.course.current.names)
        else:
            return
        self.saved_at = now
        self.took = 0.0
        self._interrupt()
        self._wait_for(self.course.current)

    def _put(self, work: ExerciseWork, names: list[str]) -> None:
        """In front of what waits of the same file."""
        self.course.pending[work.stem] = list(
            dict.fromkeys([*names, *self.course.pending.get(work.stem, [])])
        )
        if not self.course.pending[work.stem]:
            del self.course.pending[work.stem]

    def _wait_for(self, work: ExerciseWork) -> None:
        """Has a file graded before all others."""
        if work.stem in self.course.pending:
            self.course.pending = {
                work.stem: self.course.pending.pop(work.stem),
                **self.course.pending,
            }
        waits = work.stem in self._waiting()
        self._asked = work if waits else None
        self._show("begun" if waits else "verdict", work)
        self._begin()

    def _waiting(self) -> dict[str, list[str]]:
        """What is to be graded and can be: a file that Python cannot read waits until it can."""
        able = {
            work.stem for work in self.course.works if work.broken is None and work.text is not None
        }
        return {stem: names for stem, names in self.course.pending.items() if stem in able}

    def _begin(self) -> None:
        waiting = self._waiting()
        if self.running is not None or not waiting:
            return
        self.running = self._spare or self._standby()
        self._spare = None
        paths = {work.stem: str(work.path) for work in self.course.works}
        self.running.ask(
            [StandbyJob(stem, paths[stem], tuple(names)) for stem, names in waiting.items()]
        )
        self.heard = time.perf_counter()

    def _interrupt(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running = None

    def _standby(self) -> Standby:
        self.trouble, work = "", self.course.current
        return Standby(
            work.stem, work.path, self.kind, self.seed, lambda *frame: self._events.put(frame)
        )

    def _look_at_clock(self) -> None:
        """A spare is started after the verdict, so that it does not slow down what runs; or when that takes long."""
        if self.running is None or not self.running.ready:
            return
        waited = time.perf_counter() - self.heard
        if waited > HANGING:
            self.running.kill()  # what is to be said of it is said when it has ended
        elif waited > SOON and self._spare is None:
            self._spare = self._standby()

    def _frame(self, process: Standby, frame: Frame) -> None:
        if process is self._spare and isinstance(frame, Ended):
            self._spare, self.trouble = None, frame.said.strip() or f"exit code {frame.code}"
        if process is self._spare and isinstance(frame, (Ready, Ended)):
            self._show("changed", self.course.current)
        if process is not self.running:
            return
        late = time.perf_counter() - self.heard > HANGING
        self.heard = time.perf_counter()
        match frame:
            case Ready():
                self._show("changed", self.course.current)
            case StandbyResult():
                self._verdict(frame.stem, frame.function, frame.results, frame)
            case Drawn():
                self._work(frame.stem).timelines[frame.function] = (frame.yours, frame.theirs)
                self._show("changed", self._work(frame.stem))
            case Ended():
                self.running = None
                waiting = self._waiting()
                if waiting and not process.ready:  # not by student code: none has run
                    self.trouble = frame.said.strip() or f"exit code {frame.code}"
                    self._show("changed", self.course.current)
                    return
                for stem, names in itertools.islice(waiting.items(), 1):
                    self._verdict(
                        stem, names[0], _ended(self._work(stem), names[0], frame.code, late)
                    )
                if self._spare is None:
                    self._spare = self._standby()
                self._begin()

    def _work(self, stem: str) -> ExerciseWork:
        return next(work for work in self.course.works if work.stem == stem)

    def _verdict(
        self,
        stem: str,
        function: str,
        results: list[CheckResult],
        frame: StandbyResult | None = None,
    ) -> None:
        work = self._work(stem)
        names = self.course.pending.get(stem, [])
        before = work.state
        if function in names:
            names.remove(function)
        if not names:
            self.course.pending.pop(stem, None)
        work.take(
            function, results, frame.printed if frame else "", frame.stopped if frame else None
        )
        if names or work is not self._asked:
            self._show("changed", work)
            return
        self._asked, following = None, self.course.after(work)
        if self.saved_at:
            self.took = time.perf_counter() - self.saved_at
            if work.state == "done" and before != "done" and work is self.course.current:
                self.course.move(following or work, finished=work)
        elif work.state == "done" and following is not None:  # begin where there is something to do
            self.course.move(following)
            self._wait_for(following)
            return
        self.course.remember()
        self._show("verdict", work)


def _ended(work: ExerciseWork, function: str, code: int, late: bool) -> list[CheckResult]:
    """The results of a function during which the process ended."""
    found = next(each for each in work.exercise.functions if each.name == function)
    happened = f"`{function}` ended the process that ran it (exit code {code})"
    expected = "a function that returns"
    if late:
        happened = f"time-out: `{function}` was still running after {HANGING:g} seconds"
        expected = "an end; look for a loop that never ends, or for something it waits for that never comes"
    first, *rest = found.checks
    return [
        result_of(work.exercise, found, first, Outcome.FAILED, Failed(happened, expected)),
        *(
            result_of(work.exercise, found, check, Outcome.BLOCKED, blocked_by=first.name)
            for check in rest
        ),
    ]


def full_screen() -> bool:
    """Whether the libraries of the full-screen app are installed."""
    try:
        import textual
        import watchfiles
    except ImportError:
        return False
    return bool(textual and watchfiles)


def saves(folder: Path, stop: threading.Event) -> Iterator[set[Path]]:
    """The Python files of a folder that were saved, each time some were: also by an editor that replaces the file.

    All of them first, when it begins to see saves: one may have been saved before.
    """
    try:
        from watchfiles import watch
    except ImportError:
        yield from _polled(folder, stop)
        return
    paths = {*_stamps(folder)}
    for changes in watch(
        folder,
        recursive=False,
        step=QUIET,
        debounce=10 * QUIET,
        stop_event=stop,
        rust_timeout=500,
        yield_on_timeout=True,
    ):
        paths |= {Path(path) for _, path in changes if path.endswith(".py")}
        if paths:
            yield paths
        paths = set()


def _polled(folder: Path, stop: threading.Event) -> Iterator[set[Path]]:
    known = _stamps(folder)
    yield {*known}
    while not stop.wait(POLLING):
        before = known
        known = _stamps(folder)
        paths = {path for path in before.keys() | known if before.get(path) != known.get(path)}
        if paths:
            yield paths


def _stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """For each Python file what changes when it is saved."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                with contextlib.suppress(OSError):
                    stat = entry.stat()
                    found[Path(entry.path)] = stat.st_mtime_ns, stat.st_size
    return found
