"""pytest's hooks for a run with exercises: the line at the start, time limits, reports, and the summary at the end."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from virtual_cuda.errors import NoSuchDevice

from gpudojo.grading import references
from gpudojo.grading.feedback import describe_line
from gpudojo.grading.limits import Limits
from gpudojo.model.catalogue import every_exercise, exercise_for
from gpudojo.model.errors import BadEvidence, NoSuchSeed, NotRecorded
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import CheckResult
from gpudojo.pytest_plugin import collection, terminal
from gpudojo.pytest_plugin.collection import CheckItem, option_name
from gpudojo.pytest_plugin.terminal import ReportedCheck

ATTRIBUTE: Final = (
    "gpudojo"  # of a report: the result of a check as plain data, which is all that xdist sends
)
STATUSES: Final = {
    "to do": ("t", "TO DO", "yellow"),
    "blocked": ("b", "BLOCKED", "yellow"),
    "error": ("E", "ERROR", "red"),
}


def _reported(item: CheckItem) -> ReportedCheck:
    return ReportedCheck(item.path, item.checks.exercise, item.check)


class ExerciseHooks:
    """Registered as a plugin when a run has its first exercise file.

    In a run with pytest-xdist, the workers collect and grade, and the process that prints reads their reports.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.checks: dict[str, ReportedCheck] = {}  # by node id, in the order of collection
        self.interrupted = ""  # the student's line at which the user pressed Ctrl-C

    def collect_file(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return collection.collect_file(path, parent)

    def no_module(self, path: Path, parent: pytest.Collector) -> pytest.Collector:
        """pytest's own collector for an exercise file, which must not import it."""
        return collection.NoTests.from_parent(parent, path=path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        # What is to be mended first is told first, as the summary's `next` does: also where a plugin such as
        # pytest-randomly shuffles tests, or where the command names a function before the one it calls.
        yield
        checks = [item for item in items if isinstance(item, CheckItem)]
        ordered = iter(sorted(checks, key=lambda item: _reported(item).position))
        items[:] = [next(ordered) if isinstance(item, CheckItem) else item for item in items]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if isinstance(item, CheckItem):
                self.checks[item.nodeid] = _reported(item)

    def collected_by_worker(self, ids: Sequence[str]) -> None:
        """Notes the checks that a worker of pytest-xdist has collected, and writes the first line of the run."""
        first = not self.checks
        for node, check in checks_of(ids, self.config.rootpath):
            self.checks.setdefault(node, check)
        if not first or not self.checks:
            return
        line = self._start({check.path: check.exercise for check in self.checks.values()})
        if (reporter := self.config.pluginmanager.getplugin("terminalreporter")) is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        # Not in the header: to choose the device takes torch, and collecting must not cost the seconds it takes.
        checks = [item for item in items if isinstance(item, CheckItem)]
        # A worker of pytest-xdist cannot end the run with a sentence; the process it works for does.
        if (
            self.config.getoption("collectonly")
            or not checks
            or hasattr(self.config, "workerinput")
        ):
            return []
        line = self._start({item.path: item.checks.exercise for item in checks})
        for checked in {id(item.checks): item.checks for item in checks}.values():
            checked.file.grader.prepare(checked.exercise, [checked.function])
        # What is here now stays until the end: to look through all of torch in every collection, five of them pytest's
        # own, and once more when Python ends, takes a second.
        gc.freeze()
        return [line]

    def _start(self, files: Mapping[Path, Exercise]) -> str:
        """The line about device and seed; raises UsageError where an option asks for what is not here."""
        from virtual_cuda.hooks import choose_device, device_count
        from virtual_cuda.ledger import write_similar

        if (reporter := self.config.pluginmanager.get_plugin("terminalreporter")) is not None:
            write_similar(reporter._tw._file)

        asked = str(self.config.getoption("dojo_bench"))
        seed = collection.seed_of(self.config)
        bench = option_name(self.config, "bench")
        kind, why = choose_device(asked)
        if kind in ("cuda", "mps") and not device_count(kind):
            raise pytest.UsageError(f"{bench} {asked}: {NoSuchDevice(kind)}")
        for path, exercise in files.items():
            try:
                references.refuse_unrecorded(path, exercise, kind, seed)
            except NoSuchSeed as error:
                raise pytest.UsageError(
                    f"{option_name(self.config, 'seed')} {seed}: {error}"
                ) from None
            except NotRecorded as error:
                raise pytest.UsageError(f"{bench} {kind}: {error}") from None
            except BadEvidence as error:
                raise pytest.UsageError(str(error)) from None
        terminal.refuse_unwritable(
            self.config.getoption("dojo_traces"), option_name(self.config, "traces")
        )
        return f"device: {kind} ({why}), seed {seed}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        # Instead of pytest-timeout's own timers, which end the item, or the process, wherever it is. Ours runs while
        # the student's code does, interrupts nothing else, and becomes a failed check.
        if not isinstance(item, CheckItem):
            return None
        characters = (
            collection.CHARACTERS if item.config.getoption("capture") != "no" else sys.maxsize
        )
        # Shared, as in a class: all scenarios of a function together have that long.
        asked = {
            "seconds": settings.timeout,
            "shared": True,
            "method": settings.method,
            "characters": characters,
        }
        item.stash[collection.LIMITS] = Limits(**asked, on_raised=collection.quit_debugger)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        return True if isinstance(item, CheckItem) else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report = yield
        if isinstance(item, CheckItem) and report.when == "call":
            terminal.move_output(report, item.checks.printed)
            result = item.stash.get(collection.RESULT, None)
            if result is not None:
                report.user_properties.append(("gpudojo", str(result.outcome)))
                setattr(report, ATTRIBUTE, (msgspec.to_builtins(result), _note(item)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        sent = getattr(report, ATTRIBUTE, None)
        if sent is not None and report.nodeid in self.checks:
            check = self.checks[report.nodeid]
            check.result, check.note = msgspec.convert(sent[0], CheckResult), sent[1]

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        outcome = dict(report.user_properties).get("gpudojo") if report.when == "call" else None
        if outcome not in STATUSES:
            return None
        letter, word, colour = STATUSES[outcome]
        return outcome, letter, (word, {colour: True})

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        files = {str(check.path): check.path for check in self.checks.values()}
        for entry, line in traceback.walk_tb(excinfo.tb):  # the innermost is the last
            if (path := files.get(entry.f_code.co_filename)) is not None:
                self.interrupted = describe_line(path, line)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminal.wanted(self.config):
            items = getattr(terminalreporter._session, "items", [])
            graders = {
                item.file.path: item.file.grader for item in items if isinstance(item, CheckItem)
            }
            terminal.write_section(
                terminalreporter, self.config, {path: g.pairs for path, g in graders.items()}
            )
            if self.checks and not graders:
                names = " and ".join(
                    option_name(self.config, name) for name in ("timeline", "traces")
                )
                terminalreporter.write_line(f"{names} do not work with -n")
        checks = list(self.checks.values())
        terminal.write_summary(terminalreporter, checks, collection.missing(checks, self.config))
        if self.interrupted:
            terminalreporter.ensure_newline()
            terminalreporter.write_line(f"interrupted at {self.interrupted}", bold=True)


def checks_of(nodes: Iterable[str], root: Path) -> Iterator[tuple[str, ReportedCheck]]:
    """The checks among node ids, which are all that a worker sends of what it has collected."""
    for node in nodes:
        file, *names = node.split("::")
        if len(names) != 2:
            continue
        path = root / file
        exercise = exercise_for(path)
        candidates = [exercise] if exercise else []
        if exercise is None and path.suffix != ".py":  # a notebook may hold any exercise
            candidates = [each for _, each in every_exercise()]
        known = (
            (e, c)
            for e in candidates
            for f in e.functions
            for c in f.checks
            if [f.name, c.name] == names
        )
        for found, check in itertools.islice(known, 1):
            yield node, ReportedCheck(path, found, check)


def _note(item: CheckItem) -> str:
    """Where the file stopped half-way although what was graded had been defined before."""
    student = item.file.grader.submission
    if student is None or student.broken is None or item.checks.function.name not in student.names:
        return ""
    error = student.broken
    text = f"{error.type}: {error.message.splitlines()[0]}" if error.message else error.type
    place = (
        describe_line(item.path, error.line).splitlines()[0]
        if error.line
        else os.path.relpath(item.path)
    )
    return f"{place} stopped with {text}; what it defines before that was graded"
