"""Findings from the reference, the stub and the kept solutions of an exercise: most are run."""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.authoring.findings import Finding
from gpudojo.authoring.kept_solutions import Claim, Solution, reference_path, stub_path
from gpudojo.authoring.variants import parse_solution
from gpudojo.grading.bindings import find_bindings
from gpudojo.grading.call import restore_shared_modules
from gpudojo.grading.engine import grade_function
from gpudojo.grading.load import load_submission
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.references import Reference
from gpudojo.grading.sources import Unparsable, parse_source
from gpudojo.model.errors import DojoError
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult
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

    Without a reference, the file is its own. Raises DojoError where it cannot be graded.
    """
    with restore_shared_modules():
        return grade_function(exercise, function, load_submission(path), reference, "virtual", SEED)


def reference_and_stub_findings(exercise: Exercise, day: str, root: Path) -> Iterator[Finding]:
    """Findings where the reference does not pass, or the stub is not all to do.

    Also where the stub gives something away. Both are run.
    """
    reference = reference_path(root, day, exercise.stem)
    stub = stub_path(root, day, exercise.stem)
    for path, wanted in ((reference, "passed"), (stub, "to do")):
        if not path.is_file():
            yield Finding(exercise.stem, f"{path.relative_to(root)} is missing")
            continue
        # The reference is compared with itself, as the stub is where there is no reference.
        compared_with = None
        if path != reference and reference.is_file():
            compared_with = reference
        yield from _unwanted_outcomes(exercise, path, wanted, compared_with)
    if reference.is_file() and stub.is_file():
        yield from stub_findings(exercise.stem, reference, stub)


def _unwanted_outcomes(
    exercise: Exercise, path: Path, wanted: str, compared_with: Path | None
) -> Iterator[Finding]:
    """Run every function of a file. Yields findings about checks without the wanted outcome."""
    for function in exercise.functions:
        try:
            reference = None
            if compared_with is not None:
                reference = ReferenceSolution(compared_with)
            results = grade_on_virtual_device(exercise, function, path, reference)
        except DojoError as error:
            text = f"`{function.name}` cannot be graded: {error}"
            yield Finding(exercise.stem, text)
            continue
        for result in results:
            if result.outcome != wanted:
                folder = path.parts[-3]
                check = f"{folder}: {function.name}::{result.check}"
                text = f"{check} is {result.outcome}, not {wanted}"
                if result.happened:
                    text += f": {result.happened}"
                yield Finding(exercise.stem, text)


def stub_findings(stem: str, reference: Path, stub: Path) -> Iterator[Finding]:
    """Findings about a stale stub, and lines of the solution that a student can read in it."""
    source = reference.read_text(encoding="utf-8")
    text_of_stub = stub.read_text(encoding="utf-8")
    try:
        fresh = stub_of(source, str(reference))
    except DojoError as error:
        yield Finding(stem, str(error))
        return
    if fresh != text_of_stub:
        yield Finding(stem, "the stub is stale; run: dojo release stubs")
    visible = {line.strip() for line in text_of_stub.splitlines()}
    for number, line in telling_lines(source):
        if line in visible:
            yield Finding(stem, f"the stub shows line {number} of the solution: {line}")


def too_few_spellings(exercise: Exercise, right: Sequence[Solution]) -> Iterator[Finding]:
    """Findings about functions with too few right solutions.

    With few, a check that accepts only one spelling is not noticed.
    """
    counts = {function.name: 0 for function in exercise.functions}
    for solution in right:
        try:
            names_bound = find_bindings(parse_source(solution.source, solution.path))
        except Unparsable as error:
            text = f"{solution.where} is not Python: {error.evidence.message}"
            yield Finding(exercise.stem, text)
            continue
        written = {name for name, _, is_stub in names_bound if not is_stub}
        for name in written & set(counts):
            counts[name] += 1
    for name, count in counts.items():
        if count < SPELLINGS:
            text = f"`{name}` has {count} right solutions; it needs {SPELLINGS}"
            yield Finding(exercise.stem, text)


def unnoticed_checks(exercise: Exercise, wrong: Sequence[Solution]) -> Iterator[Finding]:
    """Findings about checks that no wrong solution says it fails.

    Also about claims that name a check which does not exist.
    """
    claimed = set()
    for solution in wrong:
        claim = solution.claim
        if claim is not None:
            claimed.add(f"{claim.function}::{claim.check}")
    existing: set[str] = set()
    for function in exercise.functions:
        for check in function.checks:
            existing.add(f"{function.name}::{check.name}")
    for name in sorted(existing - claimed):
        yield Finding(exercise.stem, f"{name} is tested by no wrong solution")
    for name in sorted(claimed - existing):
        text = f"a wrong solution says it fails {name}, which does not exist"
        yield Finding(exercise.stem, text)


def trial_findings(
    exercise: Exercise, solutions: Sequence[Solution], day: str, root: Path
) -> Iterator[Finding]:
    """Findings from running the solutions of an exercise.

    Right ones should pass, wrong ones fail as they say, and answers that do nothing earn nothing.
    """
    path = reference_path(root, day, exercise.stem)
    reference = ReferenceSolution(path, keep=True)
    # The reference runs before a file that may spoil this process.
    for function in exercise.functions:
        try:
            reference.evidence_of(exercise, function, "virtual", SEED)
        except DojoError as error:
            yield Finding(exercise.stem, f"`{function.name}`: {error}")
            return
    yield from paid_for_nothing(exercise, path.read_text(encoding="utf-8"), reference)
    for solution in solutions:
        claim = None
        if solution.wrong:
            claim = solution.claim
            if claim is None:
                continue
        for function in _functions_to_try(exercise, solution, claim):
            results = grade_on_virtual_device(exercise, function, solution.path, reference)
            problem = _trial_problem(results, claim)
            if problem:
                yield Finding(exercise.stem, f"{solution.where} {problem}")


def _functions_to_try(
    exercise: Exercise, solution: Solution, claim: Claim | None
) -> Iterator[Function]:
    """The function that a wrong solution claims to fail, or all that a right one defines."""
    for function in exercise.functions:
        if claim is not None:
            is_tried = function.name == claim.function
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
    got = "passed everything"
    if first is not None:
        mistake = first.misconception or "-"
        got = f"{first.outcome} {first.check} as {mistake}"
    if claim is not None:
        claimed = f"{claim.check} as {claim.misconception or '-'}"
        if got == f"failed {claimed}":
            return ""
        return f"got: {got}; it says: {claimed}"
    if first is not None:
        return f"should pass and got: {got}: {first.happened}"
    return ""


class IdleAnswer(NamedTuple):
    """An answer to a function that does nothing."""

    body: str  # what is written: "return None"
    text: str  # of the whole file


def idle_answers(reference: str, function: str) -> Iterator[IdleAnswer]:
    """Answers to a function that do nothing, made from its signature in a reference's source."""
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


def paid_for_nothing(exercise: Exercise, source: str, reference: Reference) -> Iterator[Finding]:
    """Run answers that do nothing. Yields findings about functions for which some earn points.

    `source` is that of the reference.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{exercise.stem}.py"
        for function in exercise.functions:
            points_by_answer: dict[str, float] = {}
            paid_checks: dict[str, None] = {}  # each once, in order
            for answer in idle_answers(source, function.name):
                path.write_text(answer.text, encoding="utf-8")
                results = grade_on_virtual_device(exercise, function, path, reference)
                points_by_answer[answer.body] = sum(result.points for result in results)
                for result in results:
                    if result.points:
                        paid_checks[result.check] = None
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
