"""Adds to a result what the check does not know: the line to show, the signature expected, the line of an error."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from gpudojo.model.catalogue import misconceptions
from gpudojo.model.evidence import CallStatus, Observation, Raised
from gpudojo.model.exercise import Function, Misconception, sign
from gpudojo.model.results import CheckResult, Outcome

TIMED_OUT: Final = "TimedOut"
_FRAMEWORK: Final = ("gpudojo.grading.", "gpudojo.model.")


def explained(
    result: CheckResult,
    function: Function,
    found: Mapping[str, Observation],
    lines: Mapping[str, int],
    signature: str,
) -> CheckResult:
    """The result with what the whole file tells: `lines` of its names, and the `signature` the function should have."""
    if result.outcome is not Outcome.FAILED:
        return result
    line = shown(result, function, lines)
    happened, expected = result.happened, result.expected
    scenario, first = next(((n, o) for n, o in found.items() if o.status is not CallStatus.RETURNED), ("", None))
    if first is None:
        return msgspec.structs.replace(result, line=line)
    raised = first.raised or Raised("", "", None)
    if first.status is CallStatus.MISSING:
        names = [name for name in lines if name.isidentifier() and name != function.name]
        near = difflib.get_close_matches(function.name, names, 1, 0.75)
        if near:
            line = lines[near[0]]
            happened += f"; is `{near[0]}` meant to be it?"
    elif timed_out(first):
        what = f"`{function.name}`" if first.status is CallStatus.RAISED else "the file itself"
        where = f" (scenario `{scenario}`)" if first.status is CallStatus.RAISED else ""
        at = "; this is the line it was at" if raised.line is not None else ""
        happened = f"time-out: {what} was {raised.message}{where}{at}"
        expected = "an end; look for a loop that never ends, or for something it waits for that never comes"
    elif raised.type == "Unusable":
        happened = f"{raised.message} (scenario `{scenario}`)"
        expected = "what the docstring promises"
    elif raised.type == "RecursionError":
        expected = "an end; a function that calls itself needs a case in which it does not"
    elif raised.type == "TypeError" and raised.line is None and first.status is CallStatus.RAISED:
        expected = f"a function that can be called as `{function.name}{signature}`"
    return msgspec.structs.replace(result, line=line, happened=happened, expected=expected)


def shown(result: CheckResult, function: Function, lines: Mapping[str, int]) -> int | None:
    """The line to change: of the mistake itself, the recorded one, that of a sign of it, or where the function is."""
    known = misconceptions().get(result.misconception or "", Misconception("", ""))
    cause = _first(known.cause, function, lines)
    if cause is not None:
        return cause
    if result.line is not None:
        return result.line
    signs = (*result.at, *function.signs_for(result.misconception), *known.at, *function.signs_for(result.check))
    return _first((*signs, ""), function, lines)


def _first(signs: Iterable[str], function: Function, lines: Mapping[str, int]) -> int | None:
    """The line of the first of these signs that the function's source shows; the empty one is its beginning."""
    keys = (sign(function.name, what) if what else function.name for what in signs)
    return next((lines[key] for key in keys if key in lines), None)


def timed_out(seen: Observation) -> bool:
    return seen.raised is not None and seen.raised.type == TIMED_OUT


def author_line(error: BaseException, student: Path | None = None) -> str:
    """`file:line` of the author's code that raised an error: of the probe or check, or of what it called nearby."""
    places: list[tuple[FrameType, int]] = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    ours = [place for place in places if str(place[0].f_globals.get("__name__", "")).startswith(_FRAMEWORK)]
    theirs = [place for place in places if place not in ours and place[0].f_code.co_filename != str(student)]
    # The first is the probe or check itself; below it may be torch's frames, which say nothing to an author.
    home = os.path.dirname(theirs[0][0].f_code.co_filename) if theirs else ""
    near = [place for place in theirs if os.path.dirname(place[0].f_code.co_filename) == home] or ours or places
    return f"{_shown_path(near[-1][0].f_code.co_filename)}:{near[-1][1]}" if near else ""


def _shown_path(file: str) -> str:
    """Relative to where the user is, or to where the package is installed: the same on every machine."""
    folders = [folder for folder in sys.path if folder]
    with contextlib.suppress(OSError):  # student code may have removed the folder it runs in
        folders.insert(0, os.getcwd())
    folder = next((folder for folder in folders if file.startswith(os.path.join(folder, ""))), None)
    return file if folder is None else file[len(os.path.join(folder, "")) :]
