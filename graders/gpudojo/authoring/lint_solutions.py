"""Findings from the reference, the stub and the kept solutions of an exercise: most are run."""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.authoring.findings import Finding, place_in, place_of
from gpudojo.authoring.kept_solutions import Claim, Solution, reference_path, stub_path
from gpudojo.authoring.variants import parse_solution
from gpudojo.grading.bindings import find_bindings
from gpudojo.grading.call import restore_shared_modules
from gpudojo.grading.engine import grade_function
from gpudojo.grading.load import load_submission
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.references import Reference
from gpudojo.grading.sources import Unparsable, parse_source
from gpudojo.model.errors import BadMarkers, DojoError, Place, ReferenceFails, suggest_name
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.release.stubs import stub_of, telling_lines

SEED: Final = 8
# Right solutions of each function: with fewer, a check that accepts only one is not noticed.
SPELLINGS: Final = 4
# What an answer may be that does nothing.
IDLE_VALUES: Final = (
    "None",
    "0",
    "1",
    "0.0",
    "1.0",
    "True",
    "False",
    "''",
    "'cpu'",
    "[]",
    "{}",
    "()",
    "(0.0, 0.0)",
    "torch.empty(0)",
    "object()",
)
# What an answer may make of its first argument.
IDLE_USES: Final = ("{}[0]", "next(iter({}))", "len({})", "list({})", "getattr({}, 'device')")


def grade_on_virtual_device(
    exercise: Exercise, function: Function, path: Path, reference: Reference | None
) -> list[CheckResult]:
    """Run one function of a file in this process, and return its results.

    Without a reference, the file is its own. What it replaces in `time` and torch is put back.
    Raises DojoError where it cannot be graded.
    """
    with restore_shared_modules():
        return grade_function(exercise, function, load_submission(path), reference, "virtual", SEED)


def reference_and_stub_findings(
    exercise: Exercise, day: str, root: Path, broken: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield findings where the reference does not pass, or the stub is not all to do.

    Also where the stub gives something away. Both are run, but no function that is `broken`:
    everything would follow from what was said of it. Raises OSError where one cannot be read.
    """
    reference = reference_path(root, day, exercise.stem)
    stub = stub_path(root, day, exercise.stem)
    for path, wanted in ((reference, Outcome.PASSED), (stub, Outcome.TODO)):
        if not path.is_file():
            text = "it is missing"
            if path == stub:
                text += "; run: dojo release stubs"
            yield Finding(exercise.stem, text, place=place_in(path, root))
            continue
        # The reference is compared with itself, as the stub is where there is no reference.
        compared_with = None
        if path != reference and reference.is_file():
            compared_with = reference
        yield from _unwanted_outcomes(exercise, path, wanted, compared_with, root, broken)
    if reference.is_file() and stub.is_file():
        yield from stub_findings(exercise.stem, reference, stub, root)


def _unwanted_outcomes(
    exercise: Exercise,
    path: Path,
    wanted: Outcome,
    compared_with: Path | None,
    root: Path,
    broken: Collection[str],
) -> Iterator[Finding]:
    """Run every function of a file. Yields findings about checks without the wanted outcome.

    A check that only waits for another one is none. `compared_with` is the reference; without one
    the file is its own. What cannot be graded is a finding, too.
    """
    is_reference = wanted is Outcome.PASSED
    for function in exercise.functions:
        breaks = (function.name,) if is_reference else ()
        if function.name in broken:
            continue
        try:
            reference = None
            if compared_with is not None:
                reference = ReferenceSolution(compared_with)
            results = grade_on_virtual_device(exercise, function, path, reference)
        except DojoError as error:
            if isinstance(error, ReferenceFails) and compared_with is not None:
                continue  # which is said of the reference itself
            text = f"`{function.name}` cannot be graded: {error}"
            yield Finding(exercise.stem, text, place=place_in(path, root), breaks=breaks)
            continue
        for result in results:
            if result.outcome in (wanted, Outcome.BLOCKED):
                continue
            if result.source or result.called_at:
                yield broken_exercise(exercise, result, f"running {place_in(path, root)}")
                break
            folder = path.parts[-3]
            check = f"{folder}: {function.name}::{result.check}"
            text = f"{check} is {result.outcome}, not {wanted}"
            if result.happened:
                text += f": {result.happened}"
            where = place_in(path, root, result.line)
            yield Finding(exercise.stem, text, place=where, breaks=breaks)


def broken_exercise(exercise: Exercise, result: CheckResult, when: str) -> Finding:
    """The finding that a check, a probe or a diagnosis raised an error of its own.

    Also that a probe calls the reference in a way that does not fit. It stands at that line of the
    author's. `when` says which file was being judged.
    """
    place = result.source or result.called_at
    happened = result.happened.replace(f", raised at {place}", "")
    text = f"{result.function}::{result.check}, {when}: {happened}"
    return Finding(exercise.stem, text, place=place, breaks=(result.function,))


def stub_findings(stem: str, reference: Path, stub: Path, root: Path = Path()) -> Iterator[Finding]:
    """Yield findings about a stale stub, and lines of the solution that a student can read in it.

    Raises OSError where one of the files cannot be read.
    """
    source = reference.read_text(encoding="utf-8")
    text_of_stub = stub.read_text(encoding="utf-8")
    try:
        fresh = stub_of(source, str(reference))
    except BadMarkers as error:
        yield Finding(stem, error.reason, place=place_in(reference, root, error.line))
        return
    place = place_in(stub, root)
    if fresh != text_of_stub:
        yield Finding(stem, "the stub is stale; run: dojo release stubs", place=place)
    visible = {line.strip() for line in text_of_stub.splitlines()}
    for number, line in telling_lines(source):
        if line in visible:
            text = f"the stub shows line {number} of the solution: {line}"
            yield Finding(stem, text, place=place)


def too_few_spellings(
    exercise: Exercise, right: Sequence[Solution], root: Path = Path(), where: str = ""
) -> Iterator[Finding]:
    """Yield findings about functions with too few right solutions.

    With few, a check that accepts only one spelling is not noticed. `where` is the place of the
    solutions. Raises OSError where one cannot be read.
    """
    counts = {function.name: 0 for function in exercise.functions}
    for solution in right:
        try:
            names_bound = find_bindings(parse_source(solution.source, solution.path))
        except Unparsable as error:
            text = f"this is not Python: {error.evidence.message}"
            yield Finding(exercise.stem, text, place=solution.place(root))
            continue
        written = {name for name, _, is_stub in names_bound if not is_stub}
        for name in written & set(counts):
            counts[name] += 1
    for name, count in counts.items():
        if count < SPELLINGS:
            text = f"`{name}` has {count} right solutions; it needs {SPELLINGS}"
            yield Finding(exercise.stem, text, place=where)


def unnoticed_checks(
    exercise: Exercise, wrong: Sequence[Solution], root: Path = Path(), where: str = ""
) -> Iterator[Finding]:
    """Yield findings about checks that no wrong solution says it fails.

    Also about claims that name a check which does not exist; a check with a similar name is then
    taken for the one that is meant. `where` is the place of the solutions. Raises OSError where a
    solution cannot be read.
    """
    existing: dict[str, Place | None] = {}
    for function in exercise.functions:
        for check in function.checks:
            existing[f"{function.name}::{check.name}"] = check.place
    claimed = set()
    for solution in wrong:
        claim = solution.claim
        if claim is None:
            continue
        name = f"{claim.function}::{claim.check}"
        claimed.add(name)
        if name not in existing:
            checks = []
            for function in exercise.functions:
                if function.name == claim.function:
                    checks = [check.name for check in function.checks]
            hint = suggest_name(claim.check, checks, "; its checks are: {}")
            # The one that is meant is tried, and nothing more is said of it.
            similar = hint.removeprefix("; did you mean ").removesuffix("?")
            claimed.add(f"{claim.function}::{similar}")
            text = f"a wrong solution says it fails {name}, which does not exist{hint}"
            yield Finding(exercise.stem, text, place=solution.place(root))
    for name in sorted(existing.keys() - claimed):
        text = f"{name} is tested by no wrong solution; write one below # fails: {name} as -"
        yield Finding(exercise.stem, text, place=where or place_of(existing[name], root))


def trial_findings(
    exercise: Exercise,
    solutions: Sequence[Solution],
    day: str,
    root: Path,
    broken: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield findings from running the solutions of an exercise.

    Right ones should pass, wrong ones fail as they say, and answers that do nothing earn nothing.
    Nothing of them may make a check, a probe or a diagnosis raise; each such line is told once.
    Functions that are `broken` are left out: everything would follow from what was said of them.
    Raises DojoError where one cannot be graded, and OSError.
    """
    path = reference_path(root, day, exercise.stem)
    reference = ReferenceSolution(path, keep=True)
    # The reference runs before a file that may spoil this process.
    functions = []
    for function in exercise.functions:
        if function.name in broken:
            continue
        try:
            reference.evidence_of(exercise, function, "virtual", SEED)
        except ReferenceFails as error:
            yield Finding(exercise.stem, f"`{function.name}`: {error}", place=error.source)
            continue
        functions.append(function)
    told: set[str] = set()  # the places of errors of the exercise
    source = path.read_text(encoding="utf-8")
    for finding in paid_for_nothing(exercise, source, reference, functions):
        if finding.place not in told or not finding.place:
            yield finding
        told.add(finding.place)
    for solution in solutions:
        claim = None
        if solution.wrong:
            claim = solution.claim
            if claim is None:
                continue
        place = solution.place(root)
        for function in _functions_to_try(functions, solution, claim):
            results = grade_on_virtual_device(exercise, function, solution.path, reference)
            problem = _trial_problem(results, claim)
            errors = [result for result in results if _broke_off(result, is_told=bool(problem))]
            for result in errors:
                if result.source not in told:
                    yield broken_exercise(exercise, result, f"judging {place}")
                told.add(result.source)
            if problem and not errors:
                yield Finding(exercise.stem, problem, place=place)


def _broke_off(result: CheckResult, is_told: bool) -> bool:
    """True if a check, a probe or a diagnosis raised an error of its own.

    A probe that cannot use a wrong result is none, unless that is not what a solution `is_told` to
    fail by. A call that does not fit is none: the reference was called by the same line.
    """
    if result.outcome is Outcome.ERROR:
        return True
    return is_told and result.outcome is Outcome.FAILED and bool(result.source)


def _functions_to_try(
    functions: Iterable[Function], solution: Solution, claim: Claim | None
) -> Iterator[Function]:
    """Yield the function that a wrong solution claims to fail, or all that a right one defines.

    One that claims to fail a check which does not exist is not tried.
    """
    for function in functions:
        if claim is not None:
            names = [check.name for check in function.checks]
            is_tried = function.name == claim.function and claim.check in names
        else:
            definition = rf"(?m)^(def {function.name}\b|{function.name}\b *=)"
            is_tried = re.search(definition, solution.source) is not None
        if is_tried:
            yield function


def _trial_problem(results: Sequence[CheckResult], claim: Claim | None) -> str:
    """How results differ from a wrong solution's claim, or from passing; empty if they do not."""
    first = None
    for result in results:
        if result.outcome not in ("passed", "blocked"):
            first = result
            break
    if first is None and claim is None:
        return ""
    did = "it passes everything"
    why = ""
    if first is not None:
        has_failed = first.outcome is Outcome.FAILED
        verb = "fails" if has_failed else f"is {first.outcome} in"
        did = f"it {verb} {first.check} as {first.misconception or '-'}"
        why = f": {first.happened}"
        found = (first.check, first.misconception)
        if claim is not None and has_failed and found == (claim.check, claim.misconception):
            return ""
    if claim is None:
        return f"{did}, and should pass{why}"
    claimed = f"{claim.check} as {claim.misconception or '-'}"
    return f"{did}, and its first line claims that it fails {claimed}{why}"


class IdleAnswer(NamedTuple):
    """An answer to a function that does nothing."""

    body: str  # what is written: "return None"
    text: str  # of the whole file


def idle_answers(reference: str, function: str) -> Iterator[IdleAnswer]:
    """Yield answers to a function that do nothing, made from its signature in a reference's source.

    `reference` is that source. Raises SyntaxError if it is no Python.
    """
    tree = parse_solution(reference)
    imports = ""
    definition = None
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imports += f"{ast.unparse(statement)}\n"
        elif isinstance(statement, ast.FunctionDef) and statement.name == function:
            definition = statement
    head = f"{imports}import torch\n\n\n"
    if definition is None:
        for value in ("...", *IDLE_VALUES):
            body = f"{function} = {value}"
            yield IdleAnswer(body, f"{head}{body}\n")
        return
    parameters = ast.unparse(definition.args)
    signature = f"def {function}({parameters}):"
    for body in _idle_bodies(definition.args):
        yield IdleAnswer(body, f"{head}{signature}\n    {body}\n")


def _idle_bodies(arguments: ast.arguments) -> Iterator[str]:
    """Statements that are a whole function and do nothing with its arguments."""
    every = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg is not None:
        every.append(arguments.vararg)
    every += arguments.kwonlyargs
    names = [argument.arg for argument in every]
    yield "..."
    for value in (*IDLE_VALUES, *names):
        yield f"return {value}"
    if names:
        yield f"return ({', '.join(names)},)"
        for use in IDLE_USES:
            yield f"return {use.format(names[0])}"
    yield "raise ValueError"


def paid_for_nothing(
    exercise: Exercise,
    source: str,
    reference: Reference,
    functions: Iterable[Function] | None = None,
) -> Iterator[Finding]:
    """Run answers that do nothing. Yields findings about functions for which some earn points.

    Also about checks that raise for one of them. `source` is that of the reference; without
    `functions`, all of the exercise are tried. Raises DojoError where one cannot be graded, and
    OSError.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{exercise.stem}.py"
        for function in exercise.functions if functions is None else functions:
            points_by_answer: dict[str, float] = {}
            paid_checks: dict[str, None] = {}  # each once, in order
            for answer in idle_answers(source, function.name):
                path.write_text(answer.text, encoding="utf-8")
                results = grade_on_virtual_device(exercise, function, path, reference)
                points_by_answer[answer.body] = sum(result.points for result in results)
                for result in results:
                    if result.points:
                        paid_checks[result.check] = None
                    if result.outcome is Outcome.ERROR:
                        yield broken_exercise(exercise, result, f"judging `{answer.body}`")
            if paid_checks:
                text = _describe_idle_answers(function.name, points_by_answer)
                paid_for = ", ".join(paid_checks)
                yield Finding(exercise.stem, f"{text}; paid for: {paid_for}")


def _describe_idle_answers(function: str, points_by_answer: Mapping[str, float]) -> str:
    """How many of the answers to a function earn points, and which earns most."""
    paid = 0
    best = ""
    most = 0.0
    for answer, points in points_by_answer.items():
        if points:
            paid += 1
        if points > most:
            best = answer
            most = points
    answers = f"{paid} of {len(points_by_answer)} answers to `{function}`"
    return f"{answers} that do nothing earn points, the most, {most:g}, for `{best}`"
