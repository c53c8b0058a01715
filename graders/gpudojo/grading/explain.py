"""Explains failed checks: what a check itself does not know.

That is the line to show, the named mistake where the source tells another one, and what a time-out,
a missing function or a wrong signature means.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpudojo.model.catalogue import known_misconceptions
from gpudojo.model.evidence import CallStatus, Observation, Raised
from gpudojo.model.exercise import Function, Misconception, line_to_show, pattern_key
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.model.time_outs import EXPECTED_TO_END, describe_time_out

RECURSION: Final = "an end; a function that calls itself needs a case in which it does not"
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
    source; `signature` is the one that the function should have.
    """
    if result.outcome is not Outcome.FAILED:
        return result
    mistake = _mistake_by_source(result, function, lines)
    result = msgspec.structs.replace(result, misconception=mistake)
    if _calls_other_signature(result, function, observations):
        return _with_signature(result, function, lines, signature)
    line = line_of_failure(result, function, lines)
    scenario, first = _first_error(result, observations)
    if first is None:
        # No probe ended with an error, but scenarios of one may have.
        if "raised: RecursionError" in result.happened:
            result = msgspec.structs.replace(result, expected=RECURSION)
    elif first.status is CallStatus.MISSING:
        return _with_similar_name(result, function, lines, line)
    else:
        result = _with_error(result, function, scenario, first)
    return msgspec.structs.replace(result, line=line)


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
    """The result in the words for a time-out, an unusable result or an endless recursion."""
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
        happened = f"{raised.message} (scenario `{scenario}`)"
        expected = "what the docstring promises"
    elif raised.type == "RecursionError":
        expected = RECURSION
    return msgspec.structs.replace(result, happened=happened, expected=expected)


def _with_similar_name(
    result: CheckResult, function: Function, lines: Mapping[str, int], line: int | None
) -> CheckResult:
    """The result of a function that is missing, with a name in the file that may be meant."""
    names = []
    for name in lines:
        if name.isidentifier() and name != function.name:  # others are keys of patterns
            names.append(name)
    happened = result.happened
    for similar in difflib.get_close_matches(function.name, names, 1, 0.75):
        line = lines[similar]
        happened += f"; is `{similar}` meant to be it?"
    return msgspec.structs.replace(result, line=line, happened=happened)


def _calls_other_signature(
    result: CheckResult, function: Function, observations: Mapping[str, Observation]
) -> bool:
    """True if the function could not be called with the arguments of the exercise."""
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
    """The result with the signature that is expected, at the line of the function."""
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
    """

    def executes(patterns: Iterable[str]) -> bool:
        """True if the failing call has executed a line with one of these patterns."""
        line = line_to_show(patterns, function.name, lines, result.ran)
        return line is not None

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
    other = known.get(mistake.rather)
    if other is not None and executes(other.cause) and not executes(other.unless):
        return mistake.rather
    if mistake.from_source and lines and not function.is_value:
        return None
    return result.misconception


def line_of_failure(
    result: CheckResult, function: Function, lines: Mapping[str, int]
) -> int | None:
    """The line that the student should change. Returns None where nothing tells it.

    It is the line of the mistake itself, else the recorded one, else that of a pattern that was
    executed.
    """
    mistake = known_misconceptions().get(result.misconception or "", _NO_MISTAKE)
    cause = line_to_show((*mistake.cause, *result.at), function.name, lines, result.ran)
    if cause is not None:
        return cause
    if result.line is not None:
        return result.line
    patterns = (
        *function.signs_for(result.misconception),
        *mistake.at,
        *function.signs_for(result.check),
        "" if function.is_value else "return",  # what came of the call, if nothing else is known
    )
    return line_to_show(patterns, function.name, lines, result.ran)
