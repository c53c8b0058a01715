"""Explains failed checks: what a check itself does not know.

That is the line to show, the named mistake where the source tells another one, and what a time-out,
a missing function or a wrong signature means.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpudojo.model.catalogue import known_misconceptions
from gpudojo.model.evidence import CallStatus, Observation, Raised
from gpudojo.model.exercise import (
    FailureLine,
    Function,
    LineRole,
    Misconception,
    line_to_show,
    origin_of_returned,
    pattern_key,
    was_executed,
)
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.model.time_outs import EXPECTED_TO_END, describe_time_out

RECURSION: Final = "an end; a function that calls itself needs a case in which it does not"
AS_PROMISED: Final = (
    "what the docstring promises; if the function does that, this is an error in the exercise: "
    "tell your teacher"
)
_GOT_GENERATOR: Final = re.compile(r"\b(returned|is|gave|became) a generator\b")
_GOT_NONE: Final = re.compile(r"\b(returned|is|gave|chose) None\b")
_NO_ERROR: Final = Raised("", "", None)
_NO_MISTAKE: Final = Misconception("", "")


def explain_result(
    result: CheckResult,
    function: Function,
    observations: Mapping[str, Observation],
    lines: Mapping[str, int],
    signature: str,
) -> CheckResult:
    """Add the line to show and better words to the result of a failed check.

    Other results are returned as they are. `lines` are those of names and patterns in the student's
    source; `signature` is the one that the function should have. The result itself is not changed.
    Raises BadDay or OSError if the mistakes of a day cannot be read.
    """
    if result.outcome is not Outcome.FAILED:
        return result
    mistake = _mistake_by_source(result, function, lines)
    result = msgspec.structs.replace(result, misconception=mistake)
    if _calls_other_signature(result, function, observations):
        return _with_signature(result, function, lines, signature)
    shown = line_of_failure(result, function, lines)
    if shown is not None:
        result = msgspec.structs.replace(result, line=shown.line, line_role=shown.role)
    scenario, first = _first_error(result, observations)
    if first is None:
        # No probe ended with an error, but scenarios of one may have.
        if "raised: RecursionError" in result.happened:
            result = msgspec.structs.replace(result, expected=RECURSION)
    elif first.status is CallStatus.MISSING:
        return _with_similar_name(result, function, lines)
    else:
        result = _with_error(result, function, scenario, first)
    return result


def blame_helpers(
    results: Iterable[CheckResult], function: Function, earlier: Sequence[CheckResult]
) -> list[CheckResult]:
    """New results of a function, where a failure tells which other function of the file causes it.

    `earlier` are the results of functions that were judged before. The line shown is then that of
    the other function's failure. Raises BadDay or OSError if the exercise's hints cannot be read.
    """
    blamed = []
    for result in results:
        for other in earlier:
            if _is_caused_by(result, other, function):
                also = f"this call uses `{other.function}`, which fails as well"
                happened = f"{result.happened}; {also}"
                result = msgspec.structs.replace(
                    result, happened=happened, line=other.line, line_role=other.line_role
                )
                break
        blamed.append(result)
    return blamed


def _is_caused_by(result: CheckResult, other: CheckResult, function: Function) -> bool:
    """True if a failure of `function` comes from another function, in which `other` failed.

    Its failing call has executed the line of the other failure. That line or its mistake is also
    its own, or its check looks at calls of the other function: patterns for its line name it.
    Raises BadDay or OSError if these, which are among the exercise's hints, cannot be read.
    """
    if result.outcome is not Outcome.FAILED or other.outcome is not Outcome.FAILED:
        return False
    if other.function == result.function or other.line is None:
        return False
    if not was_executed(other.line, result.ran or ()):
        return False
    if result.misconception is not None:
        return result.misconception == other.misconception
    calls_it = f"{other.function}(" in function.signs_for(result.check)
    return calls_it or result.line == other.line


def _first_error(
    result: CheckResult, observations: Mapping[str, Observation]
) -> tuple[str, Observation | None]:
    """The name and the observation of the first probe whose error explains a result.

    Returns ("", None) where there is none. An edge case that ended with an error explains the check
    that asked for it, and no other.
    """
    for name, seen in observations.items():
        if seen.status is CallStatus.RETURNED:
            continue
        if seen.raised is None or seen.raised.short in result.happened:
            return name, seen
    return "", None


def _with_error(
    result: CheckResult, function: Function, scenario: str, seen: Observation
) -> CheckResult:
    """A new result in the words for a time-out, an unusable result or an endless recursion.

    `seen` is what a probe saw that ended with an error, `scenario` the name of that probe.
    """
    raised = seen.raised or _NO_ERROR
    happened = result.happened
    expected = result.expected
    if seen.timed_out:
        in_function = seen.status is CallStatus.RAISED  # and not in the file itself
        happened = describe_time_out(
            function.name if in_function else None,
            raised.message,
            scenario if in_function else "",
            line_is_shown=raised.line is not None,
        )
        expected = EXPECTED_TO_END
    elif raised.type == "Unusable":
        happened = f"{raised.message} (probe `{scenario}`)"
        expected = AS_PROMISED
        result = msgspec.structs.replace(result, source=raised.source)
    elif raised.type == "RecursionError":
        expected = RECURSION
    return msgspec.structs.replace(result, happened=happened, expected=expected)


def _with_similar_name(
    result: CheckResult, function: Function, lines: Mapping[str, int]
) -> CheckResult:
    """A new result of a function that is missing, with a name in the file that may be meant.

    Its line is that of the similar name, if there is one.
    """
    names = []
    for name in lines:
        if name.isidentifier() and name != function.name:  # others are keys of patterns
            names.append(name)
    for similar in difflib.get_close_matches(function.name, names, 1, 0.75):
        happened = f"{result.happened}; is `{similar}` meant to be it?"
        return msgspec.structs.replace(result, line=lines[similar], happened=happened)
    return result


def _calls_other_signature(
    result: CheckResult, function: Function, observations: Mapping[str, Observation]
) -> bool:
    """True if the function could not be called with the arguments of the exercise.

    `observations` are by probe.
    """
    _, first = _first_error(result, observations)
    if first is None:
        error_of_call = f"raised: TypeError: {function.name}() "
        return error_of_call in result.happened and result.line is None
    raised = first.raised
    if raised is None or first.status is not CallStatus.RAISED:
        return False
    return raised.type == "TypeError" and raised.line is None


def _with_signature(
    result: CheckResult, function: Function, lines: Mapping[str, int], signature: str
) -> CheckResult:
    """A new result with the signature that is expected, at the line of the function."""
    return msgspec.structs.replace(
        result,
        line=lines.get(function.name),
        expected=f"a function that can be called as `{function.name}{signature}`",
        misconception=result.misconception or "wrong-signature",
    )


def _mistake_by_source(
    result: CheckResult, function: Function, lines: Mapping[str, int]
) -> str | None:
    """The key of the mistake behind a failure, in the light of the source.

    That is the key which the check named, that of another mistake, or None for no known mistake.
    Raises BadDay or OSError if the mistakes of a day cannot be read. `lines` has the lines of names
    and patterns in the student's source.
    """

    def executes(patterns: Iterable[str]) -> bool:
        """True if the failing call has executed a line with one of these patterns."""
        return line_to_show(patterns, function.name, lines, result.ran) is not None

    if _GOT_GENERATOR.search(result.happened):
        return "generator-returned"
    # The check named no mistake: perhaps a `return` was forgotten.
    if result.misconception is None:
        drops_result = executes(["unused itself("])
        ends_without = executes(["end"]) and not executes(["return"])
        never_returns = pattern_key(function.name, "no return") in lines
        if (drops_result or ends_without or never_returns) and _GOT_NONE.search(result.happened):
            return "return-forgotten"
        return None
    # The check named one: what was executed confirms it, rules it out, or shows another.
    known = known_misconceptions()
    mistake = known.get(result.misconception)
    if mistake is None:
        return result.misconception
    if executes(mistake.unless):
        return None
    if executes(mistake.cause):
        return result.misconception
    tried = {result.misconception}
    key = mistake.rather
    while key in known and key not in tried:
        other = known[key]
        if executes(other.cause) and not executes(other.unless):
            return key
        tried.add(key)
        key = other.rather
    if mistake.from_source and lines and not function.is_value:
        return None
    return result.misconception


def line_of_failure(
    result: CheckResult, function: Function, lines: Mapping[str, int]
) -> FailureLine | None:
    """The line to show, and what it is to the failure. Returns None where nothing tells one.

    It is the line of the mistake itself, else the recorded one, else that of a pattern that was
    executed. What came of the call, if nothing else is known, is followed back to where it comes
    from. Raises BadDay or OSError if the mistakes of a day cannot be read.
    """
    mistake = known_misconceptions().get(result.misconception or "", _NO_MISTAKE)
    known = (*mistake.cause, *result.at)
    cause = line_to_show(known, function.name, lines, result.ran, result.line)
    if cause is not None:
        return cause
    if result.line is not None:
        return FailureLine(result.line, LineRole.LINE)
    advised = function.signs_for(result.misconception)
    noticed = line_to_show(advised, function.name, lines, result.ran)
    if noticed is not None:
        return noticed
    last = "" if function.is_value else "return"
    where_to_look = (*mistake.at, *function.signs_for(result.check), last)
    shown = line_to_show(where_to_look, function.name, lines, result.ran)
    if shown is not None and shown.role is LineRole.RETURNED:
        return origin_of_returned(shown.line, lines, result.ran)
    return shown
