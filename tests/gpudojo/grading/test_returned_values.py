"""A wrong value is followed back to where it comes from, and the line is labelled as what it is."""

from __future__ import annotations

import ast

import pytest
from gpudojo.grading.feedback import headline_and_parts
from gpudojo.grading.source_patterns import pattern_lines
from gpudojo.model.exercise import FailureLine, LineRole, line_to_show, origin_of_returned
from gpudojo.model.results import CheckResult, CheckRow, Outcome
from gpudojo.platforms._texts import describe_line

ASSIGNED = """
def f(hits, count):
    mean = hits - count
    share = 100 * hits / count
    return mean, float(share)
"""
FIXED = """
def f(devices):
    same = True
    for device in devices:
        if device is not devices[0]:
            same = False
    if not devices:
        return None
    return same
"""
IN_A_LOOP = """
def f(loader):
    result = None
    for x in loader:
        result = x if result is None else result + x
    return result.cpu()
"""
IN_DOUBT = """
def f(texts, sizes):
    found = []
    for text in texts:
        found.append(text)
    if sizes:
        total = 0
        for size in sizes:
            total += size
        return total
    best = texts[0]
    if best:
        return best
    return found
"""
EVERYTHING = ((1, 99),)


def origin(source: str, returned: int, ran: tuple[tuple[int, int], ...], part: str = "") -> object:
    lines = pattern_lines(ast.parse(source.lstrip("\n")).body)
    return origin_of_returned(returned, lines, ran, part)


@pytest.mark.parametrize(
    ("source", "returned", "part", "shown"),
    [
        (ASSIGNED, 4, "part 1", FailureLine(2, LineRole.ASSIGNED)),
        (ASSIGNED, 4, "part 2", FailureLine(3, LineRole.ASSIGNED)),
        (ASSIGNED, 4, "", FailureLine(4, LineRole.RETURNED)),
        (IN_A_LOOP, 5, "", FailureLine(4, LineRole.ASSIGNED)),
        (FIXED, 8, "", FailureLine(4, LineRole.CONDITION)),
        (FIXED, 7, "", FailureLine(6, LineRole.CONDITION)),
        # Changed in place, added up, and used for something else
        (IN_DOUBT, 13, "", FailureLine(13, LineRole.RETURNED)),
        (IN_DOUBT, 9, "", FailureLine(9, LineRole.RETURNED)),
        (IN_DOUBT, 12, "", FailureLine(12, LineRole.RETURNED)),
    ],
)
def test_where_a_returned_value_comes_from(
    source: str, returned: int, part: str, shown: FailureLine
) -> None:
    assert origin(source, returned, EVERYTHING, part) == shown


def test_only_what_was_executed_is_where_it_comes_from() -> None:
    assert origin(IN_A_LOOP, 5, ((1, 3), (5, 5))) == FailureLine(2, LineRole.ASSIGNED)
    assert origin(FIXED, 8, ((1, 4), (8, 8))) == FailureLine(2, LineRole.ASSIGNED)


STEPS = """
def f(optimizer, loader, steps):
    for i, x in enumerate(loader):
        if i % steps == 0:
            optimizer.step()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("pattern", "recorded", "shown"),
    [
        ("reached step(", None, FailureLine(3, LineRole.CONDITION)),
        ("reached line", 4, FailureLine(3, LineRole.CONDITION)),
        ("reached line", 5, None),
        ("reached enumerate(", None, None),
    ],
)
def test_the_condition_by_which_a_line_was_reached(
    pattern: str, recorded: int | None, shown: FailureLine | None
) -> None:
    lines = pattern_lines(ast.parse(STEPS.lstrip("\n")).body)
    assert line_to_show([pattern], "f", lines, EVERYTHING, recorded) == shown


@pytest.mark.parametrize(
    ("source", "role"),
    [
        ("def f(x):\n    x = x / 2\n    return x", LineRole.RETURNED),
        ("def f(x):\n    x.grad /= 2\n    x.step()", LineRole.LINE),  # nothing is returned
    ],
)
def test_a_return_is_labelled_as_such(source: str, role: LineRole) -> None:
    lines = pattern_lines(ast.parse(source).body)
    assert line_to_show(["return"], "f", lines, EVERYTHING) == FailureLine(3, role)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (LineRole.LINE, "line 7"),
        (LineRole.RETURNED, "returned in line 7"),
        (LineRole.ASSIGNED, "assigned in line 7"),
        (LineRole.CONDITION, "condition in line 7"),
    ],
)
def test_every_output_says_what_the_line_is(role: LineRole, words: str) -> None:
    result = CheckResult(
        "04_loop", "f", "c", "It is 1.", Outcome.FAILED, 1.0, "it is 2", line=7, line_role=role
    )
    _, parts = headline_and_parts(result, "loop.py:7")
    assert (role.value, "loop.py:7") in parts
    row = CheckRow("04_loop::f::c", "f", Outcome.FAILED, 0.0, 1.0, line=7, line_role=role)
    assert describe_line(row) == words
