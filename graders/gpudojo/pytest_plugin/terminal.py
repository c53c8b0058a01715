"""Terminal output: failed checks, captured output, points, what to do next, timelines."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from gpudojo.grading.feedback import (
    ALL_PASSED,
    BAR_WIDTH,
    MISSING,
    WIDTH,
    ExercisePoints,
    describe_line,
    headline_and_parts,
    hint_parts,
    hints_about,
    lay_out_part,
    progress_bar,
)
from gpudojo.model.exercise import Check, Exercise
from gpudojo.model.results import CheckResult, Outcome

if TYPE_CHECKING:
    from gpudojo.grading.watching import Pair


HEAD: Final = 40
TAIL: Final = 10
LONGEST: Final = 400
INDENT: Final = 12
BARS: Final = {
    100: BAR_WIDTH,
    72: BAR_WIDTH // 2,
}  # characters of a bar, by the columns of the terminal
COLOURS: Final[dict[str, dict[str, bool]]] = {
    "happened": {"red": True},
    "expected": {"green": True},
    "mistake": {"yellow": True},
    "hint": {"cyan": True},
}


def move_output(report: Any, printed: list[tuple[str, str]]) -> None:
    """Collects in `printed` what a function printed, and puts it, shortened, into the report of its failed check."""
    printed += [
        (title, content) for title, content in report.sections if title.startswith("Captured")
    ]
    report.sections = [each for each in report.sections if not each[0].startswith("Captured")]
    if report.failed and printed:
        report.sections += [(title, shortened(content)) for title, content in printed]
        printed.clear()


def shortened(text: str) -> str:
    """The first and last lines of a long text."""
    lines = [line if len(line) <= LONGEST else f"{line[:LONGEST]} …" for line in text.splitlines()]
    if (left_out := len(lines) - HEAD - TAIL) > 0:
        lines[HEAD:-TAIL] = [f"… {left_out:,} lines left out here; pytest -s shows all of them …"]
    return "\n".join(lines) + "\n"


class Feedback(TerminalRepr):
    """The text of one check that did not pass, coloured where the terminal has colours."""

    def __init__(
        self,
        result: CheckResult,
        exercise: Exercise,
        path: Path,
        hints: int,
        option: str = "--hints",
        blocks: Sequence[str] = (),
        first: str | None = None,
    ) -> None:
        """`blocks` are checks that wait for this one, `first` is one with the same cause, which says the rest."""
        place = describe_line(path, result.line) if result.line is not None else ""
        self.headline, self.parts = headline_and_parts(result, place, path.name)
        if first is not None:
            self.parts = [
                part for part in self.parts if part[0] in ("happened", "expected", "line")
            ]
            self.parts.append(
                ("first", f"fix {first}: the line that fails there is used here as well")
            )
        elif result.outcome is Outcome.FAILED:
            function = next(f for f in exercise.functions if f.name == result.function)
            every = hints_about(result, function)
            self.parts += hint_parts(
                every, exercise, hints, f"{option} {min(hints, len(every)) + 1}"
            )
        if blocks:
            self.parts.append(("blocks", f"{', '.join(blocks)}: checked as soon as this passes"))
        # What pytest shows in its short summary, and what a JUnit file says first.
        short = result.happened if result.outcome is Outcome.FAILED else self.headline
        self.reprcrash = ReprFileLocation(str(path), result.line or 1, short)

    def __str__(self) -> str:
        return "\n".join(
            [
                self.headline,
                *(line for name, text in self.parts for line in lay_out_part(name, text)),
            ]
        )

    def toterminal(self, tw: Any) -> None:
        width = min(WIDTH, tw.fullwidth)
        for line in textwrap.wrap(self.headline, width):
            tw.line(line, bold=True)
        for name, text in self.parts:
            first, *rest = lay_out_part(name, text, width) or [""]
            tw.write(first[:INDENT], bold=True, **COLOURS.get(name.partition(" ")[0], {}))
            emphasis = {"bold": True} if name in ("line", "mistake") else {}
            for line in (first[INDENT:], *rest):
                tw.line(line, **emphasis)


@dataclass
class ReportedCheck:
    """One collected check of a run, with its result once it has run."""

    path: Path
    exercise: Exercise
    check: Check
    result: CheckResult | None = None
    note: str = ""  # about the whole file

    @property
    def position(self) -> tuple[str, str, int]:
        """The order of the course, whatever order the checks ran in."""
        every = [check for function in self.exercise.functions for check in function.checks]
        return os.path.relpath(self.path), self.exercise.stem, every.index(self.check)


@dataclass
class MissingFile:
    """An exercise whose file is not where the others are."""

    folder: Path
    exercise: Exercise
    instead: str  # the name of a file that may be it

    @property
    def note(self) -> str:
        renamed = f". Is {self.instead} that file? Give it its name back" if self.instead else ""
        return f"{self.exercise.stem}.py is missing in {os.path.relpath(self.folder)}{renamed}"


def write_summary(
    reporter: pytest.TerminalReporter,
    checks: Sequence[ReportedCheck],
    missing: Sequence[MissingFile] = (),
) -> None:
    """The points of each exercise, what is blocked or could not be judged, what to do next.

    Nothing where no check has run.
    """
    if not any(check.result for check in checks):
        return
    checks = sorted(checks, key=lambda check: check.position)
    rows: dict[tuple[str, str], ExercisePoints] = {}
    for check in checks:
        key = os.path.relpath(check.path), check.exercise.stem
        rows.setdefault(key, ExercisePoints(key[1])).add(check.check.points, check.result)
    for each in missing:
        key = os.path.relpath(each.folder / f"{each.exercise.stem}.py"), each.exercise.stem
        row = rows.setdefault(key, ExercisePoints(key[1], max_points=float(each.exercise.points)))
        row.outcomes[MISSING] += 1
    rows = dict(sorted(rows.items())) if missing else rows
    reporter.ensure_newline()  # else the first line written after a run without failures begins with an empty one
    reporter.section("points", sep="=")
    wide, long = _widths(rows.values(), reporter._tw.fullwidth)
    several = len({exercise for _, exercise in rows}) < len(rows)
    file = None
    for (path, _), row in rows.items():
        if several and path != file:
            file = path
            reporter.write_line(path, bold=True)
        colour = {"done": {"green": True}, "to do": {"light": True}}.get(
            row.state, {"yellow": True}
        )
        name = row.exercise if len(row.exercise) <= wide else f"{row.exercise[: wide - 1]}…"
        reporter.write(f"{name:{wide}}  ")
        reporter.write(
            f"{progress_bar(row.points, row.max_points, long)}  " if long else "", **colour
        )
        reporter.write(f"{row.points:5.4g} of {row.max_points:<4g}  ")
        reporter.write_line(row.state, **colour)
    points = sum(row.points for row in rows.values())
    most = sum(row.max_points for row in rows.values())
    gap = f"{'':{long}}  " if long else ""
    reporter.write_line(f"{'total':{wide}}  {gap}{points:5.4g} of {most:g}", bold=True)
    for note in dict.fromkeys(
        [check.note for check in checks if check.note] + [each.note for each in missing]
    ):
        _write_wrapped(reporter, f"note: {note}", yellow=True)
    errors = [
        check.result for check in checks if check.result and check.result.outcome is Outcome.ERROR
    ]
    if errors:
        count = "1 check" if len(errors) == 1 else f"{len(errors)} checks"
        said = f"{count} could not be judged: an error in the exercise, not in your code. Please report it:"
        reporter.write_line(said, red=True, bold=True)
    for happened in dict.fromkeys(
        result.happened for result in errors
    ):  # its place is for the course's author
        reporter.write_line(f"  {happened}", red=True)
    _write_next(reporter, checks, missing)


def _widths(rows: Iterable[ExercisePoints], width: int) -> tuple[int, int]:
    """The columns for the names and for the bars; these depend on the terminal only, not on what is run."""
    rows = list(rows)
    long = next((bars for columns, bars in BARS.items() if width >= columns), 0)
    rest = len("    0 of 14    ") + max(len(row.state) for row in rows) + 2 + (long and long + 2)
    return min(max(len(row.exercise) for row in rows), max(width - rest, 12)), long


def _write_wrapped(reporter: pytest.TerminalReporter, text: str, **colour: bool) -> None:
    for line in textwrap.wrap(
        text, reporter._tw.fullwidth, subsequent_indent="      ", break_on_hyphens=False
    ):
        reporter.write_line(line, **colour)


def _write_next(
    reporter: pytest.TerminalReporter,
    checks: Sequence[ReportedCheck],
    missing: Sequence[MissingFile],
) -> None:
    """First what is begun, then what is to do; never what another check blocks."""
    for outcome in (Outcome.FAILED, Outcome.TODO):
        for check in checks:
            if check.result is None or check.result.outcome is not outcome:
                continue
            name = f"`{check.result.function}`"
            what = f"write {name}" if outcome is Outcome.TODO else check.result.claim
            _write_wrapped(
                reporter, f"next: {what if name in what else f'{name}: {what}'}", bold=True
            )
            node = f"{os.path.relpath(check.path)}::{check.result.function}"
            reporter.write_line(f"      pytest {shlex.quote(node)}", cyan=True)
            return
    if not missing and all(
        check.result is not None and check.result.outcome is Outcome.PASSED for check in checks
    ):
        reporter.write_line(ALL_PASSED, green=True, bold=True)


TIMELINE_COLOURS: Final[dict[str, dict[str, bool]]] = {
    "wait": {"red": True, "bold": True},
    "copy": {"cyan": True},
    "grad": {"yellow": True},
    "no grad": {"green": True},
    "autocast": {"purple": True},
    "pass": {"bold": True},
    "memory": {"blue": True},
}


def wanted(config: pytest.Config) -> bool:
    return bool(config.getoption("dojo_timeline") or config.getoption("dojo_traces"))


def refuse_unwritable(folder: Path | None, option: str) -> None:
    """Raises UsageError before anything runs: at the end, what there was to write would be lost."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise pytest.UsageError(f"{option} {folder}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise pytest.UsageError(f"{option} {folder}: it cannot be written to")


def write_section(
    reporter: pytest.TerminalReporter,
    config: pytest.Config,
    files: Mapping[Path, Mapping[str, Pair]],
) -> None:
    """Draws and writes what was recorded in this run."""
    if not any(files.values()):
        return
    if config.getoption("dojo_timeline"):
        _draw(reporter, files)
    if config.getoption("dojo_traces"):
        _write_traces(reporter, Path(config.getoption("dojo_traces")), files)


def _draw(reporter: pytest.TerminalReporter, files: Mapping[Path, Mapping[str, Pair]]) -> None:
    from virtual_cuda.ledger import draw_timeline, timeline_legend

    reporter.section("what your code did", sep="=")
    width = reporter._tw.fullwidth
    nothing = []
    for path, pairs in files.items():
        if len(files) > 1 and pairs:
            reporter.write_line(os.path.relpath(path), bold=True)
        for name, pair in pairs.items():
            found = pair.timelines()
            if found is None:
                nothing.append(name)
                continue
            for line in draw_timeline(found[0], width, found[1]):
                for text, meaning in line:
                    reporter.write(text, **TIMELINE_COLOURS.get(meaning, {}))
                reporter.write_line("")
            reporter.write_line("")
    if nothing:
        reporter.write_line(
            f"no timeline of {', '.join(nothing)}: almost nothing happened on a device"
        )
    for signs in timeline_legend(width):
        reporter.write_line(signs, light=True)


def _write_traces(
    reporter: pytest.TerminalReporter, folder: Path, files: Mapping[Path, Mapping[str, Pair]]
) -> None:
    """Writes one file per function, with the folder's name in front where several files have the function."""
    import msgspec

    written = 0
    for path, pairs in files.items():
        for name, pair in pairs.items():
            if not pair.yours.records:
                continue
            same = [
                each
                for each in files.values()
                if name in each and each[name].exercise == pair.exercise
            ]
            beside = f"{path.parent.name}-" if len(same) > 1 else ""
            target = folder / f"{beside}{pair.exercise}-{name}.json"
            try:
                target.write_bytes(msgspec.json.encode(pair.yours.trace()))
                written += 1
            except OSError as error:
                reporter.write_line(f"cannot write {target}: {error.strerror}", red=True)
    reporter.write_line(
        f"{written} {'trace' if written == 1 else 'traces'} in {folder}; ui.perfetto.dev opens them"
    )
