"""Findings about what a day declares: functions, checks, points, misconceptions and hints."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.authoring.findings import Finding
from gpudojo.authoring.kept_solutions import Solution
from gpudojo.model.catalogue import (
    exercises_of,
    general_mistakes,
    misconceptions_of,
    registered_days,
    size_of_complete_day,
)
from gpudojo.model.exercise import Exercise, Function
from gpudojo.release.stubs import telling_lines

COUNT_OF_HINTS: Final = 3  # on a misconception
PLACE_IN_FAILED: Final = 3  # of the misconception, among the arguments of `Failed`


def declaration_findings(exercise: Exercise, mistakes: Container[str] = ()) -> Iterator[Finding]:
    """Findings about what an exercise says of itself: hints, probes, checks and points.

    `mistakes` are the keys of the day's misconceptions.
    """
    if not exercise.functions:
        yield Finding(exercise.stem, "it has no functions")
    for function in exercise.functions:
        for text in _problems_of_function(function, mistakes):
            yield Finding(exercise.stem, text)
    total = sum(function.points for function in exercise.functions)
    if total != exercise.points:
        text = f"the points of its checks add up to {total:g}, not {exercise.points:g}"
        yield Finding(exercise.stem, text)


def _problems_of_function(function: Function, mistakes: Container[str]) -> Iterator[str]:
    """Sentences about the hints, probes and checks of a function."""
    name = function.name
    if not function.hints:
        yield f"`{name}` has no hints"
    if not function.probes or not function.checks:
        yield f"`{name}` has no probes or no checks"
    # Hints and needs must name what there is.
    names = [check.name for check in function.checks]
    for key in function.written_hints.keys:
        if key not in names and key not in mistakes:
            yield f"`{name}` has hints on {key!r}, no check of it and no mistake"
    judged_before: set[str] = set()
    for check in function.checks:
        for need in check.needs:
            if need not in judged_before:
                yield f"{name}::{check.name} needs {need!r}, not judged before it"
        judged_before.add(check.name)
    for check_name in _names_given_twice(names):
        yield f"`{name}` has two checks named {check_name}"


def _names_given_twice(names: Sequence[str]) -> list[str]:
    """The names that are not the only one of their kind, each once, sorted."""
    counts = Counter(names)
    return sorted(name for name, count in counts.items() if count > 1)


def completeness_findings(day: str, unfinished: Sequence[str] = ()) -> Iterator[Finding]:
    """Findings about exercises or points that a day lacks, or has twice.

    `unfinished` are the stems of the exercises that are still being written.
    """
    exercises = exercises_of(day)
    numbers = [exercise.number for exercise in exercises]
    total = sum(exercise.points for exercise in exercises)
    wanted_count, wanted_points = size_of_complete_day(day)
    wanted_numbers = [f"{place:02}" for place in range(1, wanted_count + 1)]
    missing = [number for number in wanted_numbers if number not in numbers]
    if missing:
        text = f"exercises {', '.join(missing)} are missing"
        text += f"; {total:g} of {wanted_points:g} points are there"
        yield Finding(day, text, warning=True)
    elif total != wanted_points:
        text = f"the points add up to {total:g}, not {wanted_points:g}"
        if unfinished:
            text += f"; correct this before you finish {' and '.join(unfinished)}"
        yield Finding(day, text, warning=bool(unfinished))
    for number_given_twice in _names_given_twice(numbers):
        yield Finding(day, f"two exercises have the number {number_given_twice}")


def misconception_findings(
    day: str, solutions: Sequence[Solution], unfinished: bool = False
) -> Iterator[Finding]:
    """Findings about misconceptions that the day does not declare or explain.

    Also about those that no wrong solution makes.
    """
    declared = misconceptions_of(day)
    known = {**general_mistakes(), **declared}
    yield from _unknown_keys_in_code(day, known)
    # Names in the wrong solutions.
    has_claims = False
    claimed_keys = set()
    for solution in solutions:
        claim = solution.claim
        if claim is None or not solution.wrong:
            continue
        has_claims = True
        key = claim.misconception
        claimed_keys.add(key)
        if key is not None and key not in known:
            text = f"{solution.where}: {day} has no misconception {key!r}"
            yield Finding(solution.exercise, text)
    if not has_claims:
        return
    for finding in completeness_findings(day):
        if finding.warning:
            unfinished = True
    for key in sorted(set(declared) - claimed_keys):
        text = f"no wrong solution makes the mistake {key!r}"
        yield Finding("misconceptions", text, warning=unfinished)
    # What the declared ones say.
    for key, mistake in known.items():
        is_explained = mistake.name.strip() and mistake.why.strip()
        if not is_explained:
            yield Finding("misconceptions", f"{key!r} has no name or does not say why it matters")


def _unknown_keys_in_code(day: str, known: Container[str]) -> Iterator[Finding]:
    """Findings about misconceptions that the code of a day names, and that are not known."""
    folder = registered_days()[day].folder
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for key, line in misconception_keys_in(source):
            if key in known:
                continue
            text = f"line {line} names a misconception {key!r} that {day}'s"
            text += " misconceptions.toml does not have"
            yield Finding(path.relative_to(folder).as_posix(), text)


def hint_findings(day: str, root: Path) -> Iterator[Finding]:
    """Findings about misconceptions without three different hints.

    Also about those whose first hint shows code of a reference.
    """
    code_of_reference = _telling_code(root / "reference" / day)
    known = {**general_mistakes(), **misconceptions_of(day)}
    for key, mistake in known.items():
        count = len(mistake.hints)
        different = {hint.strip() for hint in mistake.hints}
        different.discard("")
        if len(different) != COUNT_OF_HINTS or count != COUNT_OF_HINTS:
            text = f"{key!r} needs {COUNT_OF_HINTS} different hints and has {count}"
            yield Finding("misconceptions", text)
        if not mistake.hints:
            continue
        for code in re.findall(r"`([^`]+)`", mistake.hints[0]):
            if code in code_of_reference:
                text = f"the first hint on {key!r} shows code of a reference: {code}"
                yield Finding("misconceptions", text)


def _telling_code(folder: Path) -> str:
    """The lines of all solutions in a folder that would tell how an exercise is solved."""
    lines = []
    for path in sorted(folder.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        for line in telling_lines(source):
            lines.append(line.text)
    return "\n".join(lines)


class KeyAtLine(NamedTuple):
    """The key of a misconception, and the line that names it."""

    key: str
    line: int


def misconception_keys_in(source: str) -> list[KeyAtLine]:
    """The misconception keys a module's checks name, given by position or by name."""
    tree = ast.parse(source)
    places = _places_of_misconceptions(tree)
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        # What is passed as the misconception, by name or by position.
        values = []
        for keyword in node.keywords:
            if keyword.arg == "misconception":
                values.append(keyword.value)
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in places:
            place = places[called]
            values += node.args[place : place + 1]
        for value in values:
            for text in _possible_texts(value):
                found.append(KeyAtLine(text, value.lineno))
    return found


def _places_of_misconceptions(tree: ast.Module) -> dict[str, int]:
    """Which argument is a misconception, by function: of those of a module, and of `Failed`."""
    places = {"Failed": PLACE_IN_FAILED}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for place, argument in enumerate(node.args.args):
            if argument.arg == "misconception":
                places[node.name] = place
    return places


def _possible_texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may come out as: of a condition, those of each branch."""
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from _possible_texts(body)
            yield from _possible_texts(orelse)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _possible_texts(value)
