"""Adds to a failure what the check itself does not know: the line, the signature."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import msgspec

from gpudojo.model.catalogue import misconceptions
from gpudojo.model.evidence import CallStatus, Observation, Raised
from gpudojo.model.exercise import Function, Misconception, sign
from gpudojo.model.results import CheckResult, Outcome

TIMED_OUT = "TimedOut"


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
        expected = "an end: does every loop have one, and does what it waits for come?"
    elif raised.type == "Unusable":
        happened = f"{raised.message} (scenario `{scenario}`)"
        expected = "what the docstring promises"
    elif raised.type == "RecursionError":
        expected = "an end: a function that calls itself needs a case in which it does not"
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
