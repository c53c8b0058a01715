"""pytest's hooks for a run with exercises: its first line, time limits, reports, the summary."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from virtual_cuda.errors import NoSuchDevice
from virtual_cuda.hooks import REAL_GPUS

from gpudojo.grading import references
from gpudojo.grading.debugger import enter_debugger, resume_code
from gpudojo.grading.feedback import describe_line
from gpudojo.grading.limits import Limits
from gpudojo.model.catalogue import every_exercise, exercise_for
from gpudojo.model.errors import BadEvidence, NoSuchSeed, NotRecorded
from gpudojo.model.exercise import Check, Exercise
from gpudojo.model.results import CheckResult
from gpudojo.pytest_plugin import collection, terminal, timelines
from gpudojo.pytest_plugin.collection import CheckItem, FunctionChecks, option_name
from gpudojo.pytest_plugin.terminal import ReportedCheck

# The attribute of a report with the result of a check as plain data, which is all that xdist sends.
ATTRIBUTE: Final = "gpudojo"


DEFAULT_REPORTS: Final = "fE"  # of pytest's option -r


class Status(NamedTuple):
    """How pytest shows an outcome that it does not know."""

    letter: str
    word: str
    colour: str


STATUSES: Final = {
    "to do": Status("t", "TO DO", "yellow"),
    "blocked": Status("b", "BLOCKED", "yellow"),
    "error": Status("E", "ERROR", "red"),
}


def _reported_check(item: CheckItem) -> ReportedCheck:
    """A collected check, without a result yet."""
    return ReportedCheck(item.path, item.checks.exercise, item.check)


def _place_in_course(item: CheckItem) -> tuple[str, str, int]:
    """Return what checks are sorted by: the order of the course."""
    check = _reported_check(item)
    return check.position


def _check_items(items: Iterable[pytest.Item]) -> list[CheckItem]:
    """The items of a run that are checks of exercises."""
    return [item for item in items if isinstance(item, CheckItem)]


class ExerciseHooks:
    """Registered as a plugin when a run has its first exercise file.

    In a run with pytest-xdist, the workers collect and grade, and the process that prints reads
    their reports.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.checks: dict[str, ReportedCheck] = {}  # by node id, in the order of collection
        self.interrupted = ""  # the student's line at which the user pressed Ctrl-C

    # Collecting

    def collect_file(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """A collector for an exercise file or a notebook. Returns None for any other file.

        Raises BadDay where a day cannot be imported, and OSError.
        """
        return collection.collect_file(path, parent)

    def no_module(self, path: Path, parent: pytest.Collector) -> pytest.Collector:
        """pytest's own collector for an exercise file, which must not import it."""
        return collection.NoTests.from_parent(parent, path=path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Sort the checks in the order of the course, and leave other tests where they are.

        Changes `items`. What is to be mended first is told first, as the summary's `next` does:
        also if a plugin such as pytest-randomly shuffles tests, or if the command names a function
        before the one it calls.
        """
        yield
        checks = _check_items(items)
        checks.sort(key=_place_in_course)
        ordered = iter(checks)
        for place, item in enumerate(items):
            if isinstance(item, CheckItem):
                items[place] = next(ordered)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the checks of this run."""
        for item in _check_items(session.items):
            self.checks[item.nodeid] = _reported_check(item)

    def add_collected_by_worker(self, ids: Sequence[str]) -> None:
        """Note the checks that a worker of pytest-xdist has collected, by their node ids.

        With the first ones, write the first line of the run, and make the folder for traces. Raises
        UsageError if an option asks for what is not here, and BadDay where a day cannot be
        imported.
        """
        is_first = not self.checks
        for node, check in checks_among(ids, self.config.rootpath):
            self.checks.setdefault(node, check)
        if not is_first or not self.checks:
            return
        files = {}
        for check in self.checks.values():
            files[check.path] = check.exercise
        line = self._check_options(files)
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """The line about device and seed, or none. Prepares the references of what is graded.

        It is not in the header: to choose the device takes torch, and collecting must not cost the
        seconds it takes. Makes the folder for traces, writes evidence to the user's cache, and
        freezes what the garbage collector knows. Raises UsageError if an option asks for what is
        not here.
        """
        if self.config.getoption("collectonly"):
            return []
        # A worker of pytest-xdist cannot end the run with a sentence; the process it works for
        # does.
        if hasattr(self.config, "workerinput"):
            return []
        functions: dict[FunctionChecks, None] = {}  # each once, in order
        files = {}
        for item in _check_items(items):
            functions[item.checks] = None
            files[item.path] = item.checks.exercise
        if not files:
            return []
        line = self._check_options(files)
        for checks in functions:
            grader = checks.file.grader
            grader.fill_cache(checks.exercise, [checks.function])
        # What is here now stays until the end: to look through all of torch in every collection,
        # five of them pytest's own, and once more when Python ends, takes a second.
        gc.freeze()
        return [line]

    def _check_options(self, files: Mapping[Path, Exercise]) -> str:
        """The line about device and seed.

        `files` are those that are graded. Raises UsageError if an option asks for what is not here.
        Makes the folder for traces. Changes how the terminal's stream treats characters that it
        cannot show: similar ones are written. To choose a device for "auto", patches that a closed
        one has left in torch are undone.
        """
        from virtual_cuda.hooks import choose_device, device_count
        from virtual_cuda.ledger import write_similar

        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            write_similar(reporter._tw._file)

        # The device is here.
        asked = str(self.config.getoption("dojo_bench"))
        bench = option_name(self.config, "bench")
        kind, why = choose_device(asked)
        if kind in REAL_GPUS and not device_count(kind):
            raise pytest.UsageError(f"{bench} {asked}: {NoSuchDevice(kind)}")
        # The files can be judged on this device with this seed.
        seed = collection.seed_of(self.config)
        seed_option = option_name(self.config, "seed")
        for path, exercise in files.items():
            try:
                references.refuse_without_record(path, exercise, kind, seed)
            except NoSuchSeed as error:
                raise pytest.UsageError(f"{seed_option} {seed}: {error}") from None
            except NotRecorded as error:
                raise pytest.UsageError(f"{bench} {kind}: {error}") from None
            except BadEvidence as error:
                raise pytest.UsageError(str(error)) from None
        traces = self.config.getoption("dojo_traces")
        timelines.refuse_unwritable(traces, option_name(self.config, "traces"))
        return f"device: {kind} ({why}), seed {seed}"

    # Running

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Give a check our time limit instead of a timer of pytest-timeout.

        Such a timer ends the item, or the process, wherever it is. Ours runs while the student's
        code does, interrupts nothing else, and becomes a failed check. The limits are put into the
        item's stash. Returns True for a check, else None: then pytest-timeout sets its timer.
        """
        if not isinstance(item, CheckItem):
            return None
        characters = collection.OUTPUT_CHARACTERS
        if item.config.getoption("capture") == "no":
            characters = sys.maxsize
        item.stash[collection.LIMITS] = Limits(
            seconds=settings.timeout,
            shared=True,  # as in a class: all scenarios of a function together have that long
            method=settings.method,
            characters=characters,
        )
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        """Return True for a check, which has no timer of pytest-timeout; else None."""
        if isinstance(item, CheckItem):
            return True
        return None

    def pytest_enter_pdb(self, pdb: Any) -> None:
        """Stop the clock of the time limit while the user is in the debugger."""
        enter_debugger(pdb)

    def pytest_leave_pdb(self) -> None:
        """Let the clock of the time limit go on."""
        resume_code()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Add a check's result to its report, and move what was printed.

        The result goes to an attribute as plain data, its outcome to the user properties. Returns
        the report.
        """
        report = yield
        if not isinstance(item, CheckItem) or report.when != "call":
            return report
        terminal.move_output(report, item.checks.printed)
        result = item.stash.get(collection.RESULT, None)
        if result is not None:
            outcome = str(result.outcome)
            report.user_properties.append(("gpudojo", outcome))
            plain_result = msgspec.to_builtins(result)
            note = _note_about(item)
            setattr(report, ATTRIBUTE, (plain_result, note))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a check's result from its report, which may come from a worker.

        Reports of other tests are left alone.
        """
        sent = getattr(report, ATTRIBUTE, None)
        if sent is not None and report.nodeid in self.checks:
            result, note = sent
            check = self.checks[report.nodeid]
            check.result = msgspec.convert(result, CheckResult)
            check.note = note

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """How pytest shows an outcome that it does not know: category, letter, word and colour.

        Returns None for any other report.
        """
        if report.when != "call":
            return None
        properties = dict(report.user_properties)
        outcome = str(properties.get("gpudojo"))
        status = STATUSES.get(outcome)
        if status is None:
            return None
        markup = {status.colour: True}
        return outcome, status.letter, (status.word, markup)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note the innermost line of a student's file at which the run was interrupted."""
        files = {check.path for check in self.checks.values()}
        for frame, line in traceback.walk_tb(excinfo.tb):  # the innermost is the last
            path = Path(frame.f_code.co_filename)
            if path in files:
                self.interrupted = describe_line(path, line)

    # The end

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write timelines, points, what to do next, and where the run was interrupted.

        The files of traces are written, too.
        Raises BadDay where the day of a missing file cannot be imported.
        """
        if timelines.records_timelines(self.config):
            self._write_timelines(terminalreporter)
        self._leave_out_short_summary(terminalreporter)
        checks = list(self.checks.values())
        missing = collection.missing_files(checks, self.config)
        terminal.write_summary(terminalreporter, checks, missing)
        if self.interrupted:
            terminalreporter.ensure_newline()
            terminalreporter.write_line(f"interrupted at {self.interrupted}", bold=True)

    def _leave_out_short_summary(self, reporter: pytest.TerminalReporter) -> None:
        """Keep pytest from listing failures once more below the points, where all are checks.

        Not where the user has asked for a list with `-r`, or where another test has failed.
        """
        if self.config.getoption("reportchars") != DEFAULT_REPORTS:
            return
        for category in ("failed", "error"):
            for report in reporter.stats.get(category, []):
                if report.nodeid not in self.checks:
                    return
        reporter.reportchars = ""

    def _write_timelines(self, reporter: pytest.TerminalReporter) -> None:
        """Write the timelines and traces of this process, or that there are none with workers."""
        items = _check_items(getattr(reporter._session, "items", []))
        recorded = {}
        for item in items:
            recorded[item.path] = item.file.grader.pairs
        timelines.write_timelines(reporter, self.config, recorded)
        if self.checks and not items:  # they were collected by workers
            timeline = option_name(self.config, "timeline")
            traces = option_name(self.config, "traces")
            reporter.write_line(f"{timeline} and {traces} do not work with -n")


def checks_among(nodes: Iterable[str], root: Path) -> Iterator[tuple[str, ReportedCheck]]:
    """Yield the checks among node ids, each with its id.

    Node ids are all that a worker sends of what it has collected; their files are below `root`.
    Raises BadDay where a day cannot be imported.
    """
    for node in nodes:
        file, *names = node.split("::")
        if len(names) != 2:
            continue
        path = root / file
        for exercise in _exercises_in(path):
            check = _find_check(exercise, *names)
            if check is not None:
                yield node, ReportedCheck(path, exercise, check)
                break


def _exercises_in(path: Path) -> Iterator[Exercise]:
    """Yield the exercise that a file is for; a notebook may hold any of them.

    Raises BadDay where a day cannot be imported.
    """
    exercise = exercise_for(path)
    if exercise is not None:
        yield exercise
    elif path.suffix != ".py":
        for _, each in every_exercise():
            yield each


def _find_check(exercise: Exercise, function_name: str, check_name: str) -> Check | None:
    """The check of that name. Returns None if the exercise has none."""
    for function in exercise.functions:
        for check in function.checks:
            if function.name == function_name and check.name == check_name:
                return check
    return None


def _note_about(item: CheckItem) -> str:
    """A note that the file stopped after the graded function was defined, or that it stopped and
    the function is still a stub; else an empty text.
    """
    student = item.file.grader.submission
    if student is None or student.broken is None:
        return ""
    function = item.checks.function
    is_stub = function.name in student.todo
    if function.name not in student.names and not is_stub:
        return ""
    error = student.broken
    text = error.type
    if error.message:
        first_line = error.message.splitlines()[0]
        text = f"{error.type}: {first_line}"
    place = os.path.relpath(item.path)
    if error.line:
        line_and_code = describe_line(item.path, error.line)
        place = line_and_code.splitlines()[0]
    if is_stub:
        return f"{place} stopped with {text}"
    return f"{place} stopped with {text}; what it defines before that was graded"
