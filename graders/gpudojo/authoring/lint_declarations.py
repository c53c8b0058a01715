"""Findings about what a day declares: functions, checks, points, misconceptions and hints."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.authoring.findings import Finding, line_with, place_in, place_of
from gpudojo.authoring.kept_solutions import Solution
from gpudojo.grading.bindings import find_bindings
from gpudojo.model.catalogue import (
    MISCONCEPTIONS_FILE,
    exercises_of,
    misconceptions_of,
    mistakes_for,
    registered_days,
    size_of_complete_day,
)
from gpudojo.model.errors import BadDay, suggest_name
from gpudojo.model.exercise import Exercise, Function
from gpudojo.release.leaks import leaks_in_package
from gpudojo.release.stubs import telling_lines

COUNT_OF_HINTS: Final = 3  # on a misconception
PLACE_IN_FAILED: Final = 3  # of the misconception, among the arguments of `Failed`


def declaration_findings(
    exercise: Exercise, mistakes: Iterable[str] = (), root: Path = Path()
) -> Iterator[Finding]:
    """Yield findings about what an exercise says of itself: hints, probes, checks and points.

    `mistakes` are the keys of the day's misconceptions, `root` is the repository. Raises OSError
    where the file of hints cannot be read.
    """
    place = place_of(exercise.place, root)
    if not exercise.functions:
        text = 'it has no functions; declare one with exercise.function("name")'
        yield Finding(exercise.stem, text, place=place)
    try:
        yield from _problems_of_hints(exercise, [*mistakes], root)
    except BadDay as error:
        where = place_in(Path(error.file), root, error.line)
        every = tuple(function.name for function in exercise.functions)
        yield Finding(exercise.stem, error.reason, place=where, breaks=every)
    for function in exercise.functions:
        yield from _problems_of_function(exercise, function, root)
    total = sum(function.points for function in exercise.functions)
    if total != exercise.points:
        parts = ", ".join(f"{each.name} {each.points:g}" for each in exercise.functions)
        text = f"the points of its checks add up to {total:g}, not {exercise.points:g}"
        if parts:
            text += f" ({parts}); change the points of a check, or those of the exercise"
        yield Finding(exercise.stem, text, place=place)


def _problems_of_hints(
    exercise: Exercise, mistakes: Sequence[str], root: Path
) -> Iterator[Finding]:
    """Yield findings about functions without hints, and hints about what does not exist.

    `mistakes` are the keys of the day's misconceptions. Raises BadDay for a mistake in the file of
    hints, and OSError where it cannot be read.
    """
    path = exercise.hints_file
    for function in exercise.functions:
        name = function.name
        place = ""
        if path is not None:
            place = place_in(path, root)
        if not function.hints:
            text = f"`{name}` has no hints; write some below [[{name}.hints]] in this file"
            yield Finding(exercise.stem, text, place=place)
        names = [check.name for check in function.checks]
        for key in function.written_hints.keys:
            if key in names or key in mistakes:
                continue
            line = line_with(path, key) if path is not None else None
            if path is not None:
                place = place_in(path, root, line)
            hint = suggest_name(key, [*names, *mistakes], "")
            text = f"`{name}` has hints on {key!r}, no check of it and no misconception{hint}"
            yield Finding(exercise.stem, text, place=place)


def _problems_of_function(exercise: Exercise, function: Function, root: Path) -> Iterator[Finding]:
    """Yield findings about the probes and checks of a function."""
    name = function.name
    place = place_of(function.place, root)
    if not function.probes or not function.checks:
        yield Finding(exercise.stem, f"`{name}` has no probes or no checks", place=place)
    # Needs must name what is judged before.
    names = [check.name for check in function.checks]
    needed = {need for check in function.checks for need in check.needs}
    if "runs" in needed and "runs" not in names:
        text = f"`{name}` has no check `runs`, which the others need; "
        text += f"declare runs({name}) before them"
        yield Finding(exercise.stem, text, place=place, breaks=(name,))
    judged_before = {"runs"}
    for check in function.checks:
        for need in check.needs:
            if need in judged_before:
                continue
            hint = "; declare that one first"
            if need not in names:
                hint = suggest_name(need, judged_before)
            text = f"{name}::{check.name} needs {need!r}, not judged before it{hint}"
            where = place_of(check.place, root)
            yield Finding(exercise.stem, text, place=where, breaks=(name,))
        judged_before.add(check.name)
    for check_name in _names_given_twice(names):
        *_, last = [check for check in function.checks if check.name == check_name]
        text = f"`{name}` has two checks named {check_name}; give one of them a function of its own"
        text += ", below @check_scenarios(…), which has its name and its claim"
        yield Finding(exercise.stem, text, place=place_of(last.place, root))


def functions_not_in_reference(
    exercise: Exercise, reference: Path, root: Path
) -> Iterator[Finding]:
    """Yield findings about declared functions that the reference does not define.

    Says nothing of a reference that is not there, or is no Python. Raises OSError where it cannot
    be read.
    """
    if not reference.is_file():
        return
    try:
        tree = ast.parse(reference.read_text(encoding="utf-8"))
    except SyntaxError:
        return
    defined = {binding.name for binding in find_bindings(tree)}
    for function in exercise.functions:
        if function.name in defined:
            continue
        hint = suggest_name(function.name, defined, "; define it there")
        text = f"{place_in(reference, root)} has no `{function.name}`{hint}"
        where = place_of(function.place, root)
        yield Finding(exercise.stem, text, place=where, breaks=(function.name,))


def _names_given_twice(names: Sequence[str]) -> list[str]:
    """The names that are not the only one of their kind, each once, sorted."""
    counts = Counter(names)
    return sorted(name for name, count in counts.items() if count > 1)


def completeness_findings(day: str, unfinished: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield findings about exercises or points that a day lacks, or has twice.

    `unfinished` are the stems of the exercises that are still being written. Raises BadDay where
    the day cannot be imported.
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
    day: str, solutions: Sequence[Solution], unfinished: bool = False, root: Path = Path()
) -> Iterator[Finding]:
    """Yield findings about misconceptions that the day does not declare or explain.

    Also about those that no wrong solution makes: warnings in an `unfinished` day. Raises BadDay
    where the day cannot be imported, and OSError.
    """
    declared = misconceptions_of(day)
    known = mistakes_for(day)
    yield from _unknown_keys_in_code(day, known, root)
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
            text = _advice_on_unknown(key, day, known)
            yield Finding(solution.exercise, text, place=solution.place(root))
    if not has_claims:
        return
    for finding in completeness_findings(day):
        if finding.warning:
            unfinished = True
    for key in sorted(set(declared) - claimed_keys):
        text = f"no wrong solution makes the mistake {key!r}; write one, below "
        text += f"# fails: FUNCTION::CHECK as {key}"
        yield _about_mistake(day, key, text, root, unfinished)
    # What the declared ones say.
    for key, mistake in known.items():
        is_explained = mistake.name.strip() and mistake.why.strip()
        if not is_explained:
            text = f"{key!r} has no name or does not say why it matters"
            yield _about_mistake(day, key, text, root)


def _about_mistake(day: str, key: str, text: str, root: Path, warning: bool = False) -> Finding:
    """A finding about a misconception, at its table in the day's file if it is there.

    Raises OSError where that file cannot be read.
    """
    path = registered_days()[day].folder / MISCONCEPTIONS_FILE
    place = ""
    if path.is_file():
        line = line_with(path, f"[{key}]")
        if line is not None:
            place = place_in(path, root, line)
    return Finding("misconceptions", text, warning, place)


def _unknown_keys_in_code(day: str, known: Collection[str], root: Path) -> Iterator[Finding]:
    """Yield findings about misconceptions that the code of a day names, and that are not known.

    Raises OSError or SyntaxError for a file that cannot be read.
    """
    folder = registered_days()[day].folder
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for key, line in misconception_keys_in(source):
            if key in known:
                continue
            text = _advice_on_unknown(key, day, known)
            name = path.relative_to(folder).as_posix()
            yield Finding(name, text, place=place_in(path, root, line))


def _advice_on_unknown(key: str, day: str, known: Iterable[str]) -> str:
    """A sentence about a misconception that is not known: what is meant, or where to add it."""
    path = registered_days()[day].folder / MISCONCEPTIONS_FILE
    similar = suggest_name(key, known, "")
    advice = similar or f"; add [{key}] to {path}"
    return f"there is no misconception {key!r}{advice}"


def hint_findings(day: str, root: Path) -> Iterator[Finding]:
    """Yield findings about misconceptions without three different hints.

    Also about those whose first hint shows code of a reference. Raises BadDay for a mistake in the
    day's files, and OSError.
    """
    code_of_reference = _telling_code(root / "reference" / day)
    known = mistakes_for(day)
    for key, mistake in known.items():
        count = len(mistake.hints)
        different = {hint.strip() for hint in mistake.hints}
        different.discard("")
        if len(different) != COUNT_OF_HINTS or count != COUNT_OF_HINTS:
            text = f"{key!r} needs {COUNT_OF_HINTS} different hints and has {count}"
            yield _about_mistake(day, key, text, root)
        if not mistake.hints:
            continue
        for code in re.findall(r"`([^`]+)`", mistake.hints[0]):
            if code in code_of_reference:
                text = f"the first hint on {key!r} shows code of a reference: {code}"
                yield _about_mistake(day, key, text, root)


def leak_findings(day: str, root: Path) -> Iterator[Finding]:
    """Yield findings about lines of solutions in the files of a day that students get.

    These are its modules, hints and misconceptions, for which a release would be refused. Raises
    BadMarkers for a solution whose marks do not match, and OSError.
    """
    folder = registered_days()[day].folder
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".toml")]
    files = {str(path): path.read_bytes() for path in paths}
    for leak in leaks_in_package(files, root / "reference" / day):
        path = Path(leak.path)
        where = f"line {leak.line} of the solution in {leak.reference}"
        text = f"students could read {where}: {leak.text}; say it in other words"
        yield Finding(
            path.relative_to(folder).as_posix(),
            text,
            place=place_in(path, root, line_with(path, leak.text)),
        )


def _telling_code(folder: Path) -> str:
    """The lines of all solutions in a folder that would tell how an exercise is solved.

    Raises OSError where one cannot be read.
    """
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
    """The misconception keys a module's checks name, given by position or by name.

    Raises SyntaxError for a source that is no Python.
    """
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
    """Yield the texts that an expression may come out as: of a condition, those of each branch."""
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from _possible_texts(body)
            yield from _possible_texts(orelse)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _possible_texts(value)
