"""What students read about a failed check: its texts, and their layout.

`headline_and_parts` makes a headline and labelled parts of a result; `hint_parts` makes the parts
of its hints; `lay_out_part` puts a part into lines for a terminal.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urljoin

from gpudojo.grading import notebooks
from gpudojo.model.catalogue import known_misconceptions
from gpudojo.model.exercise import Exercise, Function, was_executed
from gpudojo.model.results import (
    CheckResult,
    Outcome,
    describe_blocking,
    describe_error_of_ours,
    hints_for_result,
)

WIDTH: Final = 100
BAR_WIDTH: Final = 20
DOCS: Final = "https://pytorch.org/docs/stable/"
NOT_RUN: Final = "not run"
MISSING: Final = "missing"
ALL_PASSED: Final = "Everything passes. Well done!"
CONTINUATION: Final = 4  # spaces before the rest of a line of code that is too long
_NUMBERED_CODE: Final = re.compile(r" *\d+ \| ")  # as `describe_line` writes it
_RAISED: Final = re.compile(r"\braised:? (\w+)")
_SCENARIO_RAISED: Final = re.compile(r"scenario `(\w+)` raised: ")


class Part(NamedTuple):
    """A labelled text below the headline of a check."""

    label: str  # empty for a remark on the part above
    text: str


def headline_and_parts(
    result: CheckResult, place: str = "", file: str = ""
) -> tuple[str, list[Part]]:
    """A headline about a check that did not pass, and the parts below it.

    `place` is the line to show, in words, `file` the name of the student's file. Raises BadDay or
    OSError if the mistakes of a day cannot be read.
    """
    if result.outcome is Outcome.TODO:
        what = f"`{result.function}` is still a stub"
        if file:
            what += f" in {file}"
        return f"to do: {result.happened or what}.", []
    if result.outcome is Outcome.BLOCKED:
        return describe_blocking(result), []
    claim = Part("claim", result.claim)
    if result.outcome is Outcome.ERROR:
        happened = Part("happened", result.happened)
        return describe_error_of_ours(result), [claim, happened]
    parts = _parts_of_failure(result, place)
    raised = _SCENARIO_RAISED.match(result.happened)
    if raised is None or result.check == "runs":
        return result.claim, parts
    # The claim itself has not been looked at.
    headline = f"`{result.function}` runs in scenario `{raised[1]}` without an error."
    return headline, [claim, *parts]


def _parts_of_failure(result: CheckResult, place: str) -> list[Part]:
    """What happened, what was expected, the line, the named mistake, the points: what there is.

    `place` is the line to show, in words. Raises BadDay or OSError if the mistakes of a day cannot
    be read.
    """
    parts = [
        Part("happened", result.happened),
        Part("expected", result.expected),
        Part(result.line_role, place),
    ]
    mistake = known_misconceptions().get(result.misconception or "")
    if mistake is not None:
        why = " ".join(mistake.why.split())
        parts.append(Part("mistake", mistake.name))
        parts.append(Part("why", why))
    if result.max_points:
        worth = f"{result.max_points:g} points"
        if result.max_points == 1:
            worth = "1 point"
        parts.append(Part("worth", worth))
    return [part for part in parts if part.text]


def check_to_mend_first(
    result: CheckResult, results: Sequence[CheckResult], exercise: Exercise
) -> str | None:
    """An earlier check that fails by the same mistake, and is to be mended first; None for none.

    Only results before `result` in `results` are looked at. One of another function is named as
    `function::check`. Raises ValueError if `result` is not among them, and BadDay or OSError if the
    exercise's hints cannot be read.
    """
    for earlier in results[: results.index(result)]:
        if earlier.outcome is not Outcome.FAILED:
            continue
        named = {earlier.misconception, result.misconception} - {None}
        if len(named) > 1:  # two different mistakes
            continue
        if earlier.function == result.function:
            if _fails_alike(earlier, result, exercise):
                return earlier.check
        elif _fails_in_helper(earlier, result):
            return f"{earlier.function}::{earlier.check}"
    return None


def _same_mistake(one: CheckResult, other: CheckResult) -> bool:
    """True if both results name a mistake, and the same."""
    if one.misconception is None:
        return False
    return one.misconception == other.misconception


def _same_line(one: CheckResult, other: CheckResult) -> bool:
    """True if both results have a line, and the same."""
    if one.line is None:
        return False
    return one.line == other.line


def _fails_alike(earlier: CheckResult, result: CheckResult, exercise: Exercise) -> bool:
    """True if two checks of a function fail at one line by one mistake, error or with one hint.

    Raises BadDay or OSError if the exercise's hints cannot be read.
    """
    if not _same_line(earlier, result):
        return False
    if _same_mistake(earlier, result):
        return True
    error = _error_in(result)
    if error or _error_in(earlier):
        return error == _error_in(earlier)
    for function in exercise.functions:
        if function.name == result.function:
            hints_of_earlier = function.hints_for(earlier.about or earlier.check)
            return hints_of_earlier == function.hints_for(result.about or result.check)
    return True


def _error_in(result: CheckResult) -> str:
    """The type of the error that a failure tells of; empty for a failure without an error."""
    raised = _RAISED.search(result.happened)
    return raised[1] if raised else ""


def _fails_in_helper(earlier: CheckResult, result: CheckResult) -> bool:
    """True if another function fails at a line that this failing call has executed.

    It has to be the same mistake, or the line that is shown.
    """
    if not was_executed(earlier.line or 0, result.ran or ()):
        return False
    return _same_mistake(earlier, result) or _same_line(earlier, result)


def hints_about(result: CheckResult, function: Function) -> tuple[str, ...]:
    """The hints about one failure, and no others.

    Raises BadDay or OSError if the mistakes of a day cannot be read.
    """
    mistake = known_misconceptions().get(result.misconception or "")
    return hints_for_result(result, function, mistake)


def pages_about(result: CheckResult, exercise: Exercise) -> tuple[str, ...]:
    """What to read about one failure: a page about its mistake or its check, else those of the
    exercise.

    Raises KeyError if the exercise lacks the function, and BadDay or OSError if the texts of a day
    cannot be read.
    """
    mistake = known_misconceptions().get(result.misconception or "")
    function = exercise.function_named(result.function)
    about = result.about or result.check
    page = function.page_about(result.misconception, about, mistake=mistake)
    if page:
        return (page,)
    return exercise.reading


def hint_parts(hints: Sequence[str], pages: Sequence[str], count: int, more: str) -> list[Part]:
    """The first `count` hints as parts, and after the last of all the pages; empty without hints.

    `more` says how to see one more hint, where there are more. A page is a whole address, or one
    in torch's documentation.
    """
    chosen = hints[: max(count, 0)]
    if len(chosen) == 0:
        return []
    if len(chosen) == 1:
        parts = [Part("hint", chosen[0])]
    else:
        parts = [Part(f"hint {number}", hint) for number, hint in enumerate(chosen, 1)]
    if len(chosen) < len(hints):
        remark = f"(hint {len(chosen)} of {len(hints)}; one more with {more})"
        parts.append(Part("", remark))
    elif pages:
        addresses = [urljoin(DOCS, page) for page in pages]
        parts.append(Part("read", "\n".join(addresses)))
    return parts


def describe_line(path: Path, line: int) -> str:
    """The place of a line of the student's file, and below it the text of the line.

    In a notebook the place is a code cell and a line in it. The text is left out where the file
    cannot be read or the line is empty.
    """
    # The place, and the whole text of the file.
    name = os.path.relpath(path)
    if path.suffix == notebooks.NOTEBOOK_SUFFIX:
        try:
            notebook = notebooks.read_notebook(path)
        except (OSError, notebooks.NotANotebook):
            return name
        source = notebook.source
        cell, number = notebook.place_of_line(line)
        place = f"{name}, code cell {cell}, line {number}"
    else:
        number = line
        place = f"{name}:{line}"
        try:
            source = path.read_bytes().decode("utf-8", errors="replace")
        except OSError:
            return place
    # The text of the line.
    lines = source.replace("\r\n", "\n").split("\n")
    if line > len(lines):
        return place
    text = lines[line - 1].strip()
    if not text:
        return place
    visible = text.replace("\0", "\N{SYMBOL FOR NULL}")
    return f"{place}\n{number:>4} | {visible}"


def lay_out_part(label: str, text: str, width: int = WIDTH) -> list[str]:
    """A label and its text beside it, in lines of at most `width` characters.

    The lines of the text stay lines: code and drawings are aligned. Words are not broken: a broken
    web address is of no use.
    """
    indent = f"  {label:9} "
    after = " " * len(indent)
    lines: list[str] = []
    for line in text.splitlines():
        code = _NUMBERED_CODE.match(line)
        rest_of_code = ""
        if code is not None:  # what does not fit stands below the code, further to the right
            longest_word = max(len(word) for word in line.split())
            room = width - len(after) - longest_word
            rest_of_code = " " * max(min(len(code[0]) + CONTINUATION, room), 0)
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=indent,
            subsequent_indent=after + rest_of_code,
            break_long_words=False,
            break_on_hyphens=False,
        )
        indent = after
    return lines


def progress_bar(points: float, most: float, width: int = BAR_WIDTH) -> str:
    """A bar of `width` characters for `points` of `most`.

    It is full only with all points, and empty only with none.
    """
    if not most or points <= 0:
        filled = 0
    elif points >= most:
        filled = width
    else:
        share = points / most
        filled = round(width * share)
        filled = min(max(filled, 1), width - 1)
    return "█" * filled + "░" * (width - filled)


@dataclass
class ExercisePoints:
    """One exercise in the table of points."""

    exercise: str
    points: float = 0.0
    max_points: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add_check(self, max_points: float, result: CheckResult | None) -> None:
        """Count one check in points and outcomes; a result of None says that it has not run."""
        self.max_points += max_points
        if result is None:
            self.outcomes[NOT_RUN] += 1
        else:
            self.points += result.points
            self.outcomes[result.outcome] += 1

    @property
    def state(self) -> str:
        """How far the exercise is: done, to do, missing, or its outcomes, each with a count."""
        names = set(self.outcomes)
        if names <= {Outcome.PASSED}:
            return "done"
        if names == {Outcome.TODO}:
            return "to do"
        if MISSING in self.outcomes:
            return MISSING
        counts = []
        for name in (Outcome.FAILED, Outcome.ERROR, Outcome.BLOCKED, Outcome.TODO, NOT_RUN):
            count = self.outcomes[name]
            if count:
                counts.append(f"{count} {name}")
        return ", ".join(counts)
