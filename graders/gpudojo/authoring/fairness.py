"""Shows that wrong variants of right solutions fail, and that right variants pass.

A mutant is a right solution with one change that should make it wrong; some are right all the same,
and are known as equivalent. A rewrite is a right solution in other words.
"""

from __future__ import annotations

import ast
import itertools
import math
import shutil
import tomllib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpudojo.authoring.findings import Finding, place_in
from gpudojo.authoring.kept_solutions import kept_solutions, reference_path, stub_path
from gpudojo.authoring.mutants import make_mutants
from gpudojo.authoring.rewrites import make_rewrites
from gpudojo.authoring.variants import Variant, choose_variants
from gpudojo.classes.class_grading import ClassGrading
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.classes.runners import Progress
from gpudojo.model.errors import BadClass
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import CheckRow
from gpudojo.model.results_file import iterate

SECRET: Final = "variants"  # the same scenarios in every run, so that what was graded is graded
EQUIVALENT: Final = "equivalent.toml"  # in a day's folder of tests
WRITTEN_DIFFERENTLY: Final = str.maketrans("", "", "()\"' ")  # by versions of Python


class KnownMutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutant that is as good as its original.

    `name` changes with the solution; `diff` is what was changed.
    """

    name: str
    diff: str


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mutants of an exercise that pass, and rightly.

    `why` is the reason; `quote` are the words of the docstring that allow it, if any do.
    """

    exercise: str
    why: str
    mutants: list[KnownMutant]
    quote: str = ""


def read_equivalents(path: Path) -> list[Equivalent]:
    """The entries of a day's file; none where there is no file.

    Raises BadClass where they cannot be understood, and OSError.
    """
    if not path.is_file():
        return []
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = table.get("equivalent", [])
        return msgspec.convert(entries, list[Equivalent])
    except (ValueError, msgspec.ValidationError) as error:
        raise BadClass(f"{path}: {error}") from None


def doubtful_entries(
    exercise: Exercise,
    entries: Sequence[Equivalent],
    mutants: Sequence[Variant],
    root: Path,
    day: str,
) -> Iterator[Finding]:
    """Yield findings about entries that cannot be relied on.

    These are entries without a reason, with words that the reference's file does not have, or about
    mutants that are not made any more: `mutants` are all that are made. Raises OSError where the
    reference cannot be read.
    """
    diffs = {mutant.name: mutant.diff for mutant in mutants}
    reference = reference_path(root, day, exercise.stem)
    words_of_reference = _words_of(reference.read_text(encoding="utf-8"))
    for entry in entries:
        where = f"{EQUIVALENT}: {entry.why[:40]!r}"
        if len(entry.why.split()) < 3:
            yield Finding(exercise.stem, f"{where}: give a reason in a sentence")
        if _words_of(entry.quote) not in words_of_reference:
            text = f"{where}: the reference's file does not say {entry.quote!r}"
            yield Finding(exercise.stem, text)
        for known in entry.mutants:
            diff = diffs.get(known.name, "")
            if not _is_same_diff(diff, known.diff):
                text = f"{where}: there is no such mutant any more: {known.name}\n{known.diff}"
                yield Finding(exercise.stem, text)


def _words_of(text: str) -> str:
    """A text with one space between any two words, so that its lines do not matter."""
    return " ".join(text.split())


def _is_same_diff(diff: str, other: str) -> bool:
    """True if two diffs differ only in what versions of Python write differently."""
    return diff.translate(WRITTEN_DIFFERENTLY) == other.translate(WRITTEN_DIFFERENTLY)


class FailingRewrite(NamedTuple):
    """A rewrite that loses points, and the first check at which it does."""

    rewrite: Variant
    check: CheckRow


@dataclass
class FairnessRow:
    """What became of one exercise's variants."""

    stem: str
    mutants: int = 0
    rewrites: int = 0
    equivalent: list[Variant] = field(default_factory=list)
    alive: list[Variant] = field(default_factory=list)
    failing: list[FailingRewrite] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class RightSolution(NamedTuple):
    """A solution that variants are made of."""

    name: str
    source: str


def right_solutions(day: str, exercise: Exercise, root: Path) -> list[RightSolution]:
    """The reference and the right solutions that are kept.

    Raises OSError for one that cannot be read, and BadClass for one that is no Python.
    """
    reference = reference_path(root, day, exercise.stem)
    source = reference.read_text(encoding="utf-8")
    _require_python(source, place_in(reference, root))
    found = [RightSolution("reference", source)]
    for solution in kept_solutions(root / "tests" / day, exercise.stem):
        if not solution.wrong:
            _require_python(solution.source, solution.place(root))
            found.append(RightSolution(solution.path.stem, solution.source))
    return found


def _require_python(source: str, place: str) -> None:
    """Raises BadClass, which names the place of a solution, if its text is no Python."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        why = str(error)
        if isinstance(error, SyntaxError):
            why = error.msg  # its line is not that of a file with several solutions
        raise BadClass(f"{place}: this is not Python, so no mutants are made: {why}") from None


def all_mutants(
    day: str, exercise: Exercise, root: Path, only: Container[str] | None = None
) -> list[list[Variant]]:
    """The mutants of every right solution, or of those named in `only`; a list for each.

    Raises OSError where a solution cannot be read, and BadClass for one that is no Python.
    """
    stub = stub_path(root, day, exercise.stem)
    text_of_stub = ""
    if stub.is_file():
        text_of_stub = stub.read_text(encoding="utf-8")
    functions = [function.name for function in exercise.functions]
    found = []
    for name, source in right_solutions(day, exercise, root):
        if only is None or name in only:
            found.append(make_mutants(source, name, functions, text_of_stub))
    return found


def all_rewrites(day: str, exercise: Exercise, root: Path) -> list[list[Variant]]:
    """The rewrites of every right solution; a list for each.

    Raises OSError where one cannot be read, and BadClass for one that is no Python.
    """
    functions = [function.name for function in exercise.functions]
    found = []
    for name, source in right_solutions(day, exercise, root):
        found.append(make_rewrites(source, name, functions))
    return found


def examine_exercise(
    day: str,
    exercise: Exercise,
    root: Path,
    out: Path,
    progress: Progress,
    jobs: int = 1,
    limit: int | None = None,
) -> FairnessRow:
    """Grade an exercise's mutants, at most `limit`, and a third as many rewrites.

    Returns what became of them. Writes the variants and their results below `out`; what was graded
    before is not run again. Raises BadClass where the entries of equivalent mutants cannot be read,
    a solution is no Python, or the variants cannot be graded; other DojoErrors of grading, and
    OSError.
    """
    # Choose the mutants and the rewrites.
    mutants_by_solution = all_mutants(day, exercise, root)
    mutants = choose_variants(mutants_by_solution, limit)
    limit_of_rewrites = None
    if limit is not None:
        limit_of_rewrites = math.ceil(limit / 3)
    rewrites = choose_variants(all_rewrites(day, exercise, root), limit_of_rewrites)
    row = FairnessRow(exercise.stem, len(mutants), len(rewrites))
    # What the author knows to be right.
    entries = []
    equivalent_names: set[str] = set()
    for entry in read_equivalents(root / "tests" / day / EQUIVALENT):
        if entry.exercise == exercise.stem:
            entries.append(entry)
            equivalent_names.update(mutant.name for mutant in entry.mutants)
    every_mutant = list(itertools.chain.from_iterable(mutants_by_solution))
    row.findings += doubtful_entries(exercise, entries, every_mutant, root, day)
    variants = [*mutants, *rewrites]
    folder = out / exercise.stem
    checks = _grade_variants(day, exercise, variants, root, folder, progress, jobs)
    # Mutants should lose points, unless they are known; rewrites should lose none.
    for mutant in mutants:
        is_known = mutant.name in equivalent_names
        loses_points = _first_loss(checks[mutant.name]) is not None
        if loses_points and is_known:
            name = f"{EQUIVALENT}: {mutant.name}"
            text = f"{name} is not equivalent, for it loses points\n{mutant.diff}"
            row.findings.append(Finding(exercise.stem, text))
        elif not loses_points and is_known:
            row.equivalent.append(mutant)
        elif not loses_points:
            row.alive.append(mutant)
    for rewrite in rewrites:
        check = _first_loss(checks[rewrite.name])
        if check is not None:
            row.failing.append(FailingRewrite(rewrite, check))
    return row


def _first_loss(checks: Sequence[CheckRow]) -> CheckRow | None:
    """The first check with less than its points; None if all have theirs."""
    for check in checks:
        if check.points < check.max_points:
            return check
    return None


def _grade_variants(
    day: str,
    exercise: Exercise,
    variants: Sequence[Variant],
    root: Path,
    out: Path,
    progress: Progress,
    jobs: int,
) -> dict[str, list[CheckRow]]:
    """Grade variants as a class. Returns the checks of the functions of each, by its name.

    Writes the variants and the results below `out`; older variants there are removed. Raises
    BadClass and other DojoErrors where they cannot be graded, and OSError.
    """
    folder = out / "variants"
    shutil.rmtree(folder, ignore_errors=True)
    # Each variant is the submission of a student.
    for variant in variants:
        path = folder / variant.name / f"{exercise.stem}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(variant.source, encoding="utf-8")
    options = GradingOptions(
        submissions=[folder],
        out=out,
        reference=root / "reference" / day,
        day=day,
        secret=SECRET,
        jobs=jobs,
        only=frozenset(function.name for function in exercise.functions),
    )
    results = ClassGrading(options, progress).run()
    # Of the results, those of the functions that the change may concern.
    functions = {variant.name: variant.functions for variant in variants}
    checks_by_name = {}
    for row in iterate(results.path):
        checks = []
        for exercise_row in row.exercises:
            for check in exercise_row.checks:
                if check.function in functions[row.submission]:
                    checks.append(check)
        checks_by_name[row.submission] = checks
    return checks_by_name


def entries_for_alive_mutants(row: FairnessRow) -> str:
    """The mutants that are alive, as entries that lack a reason."""
    text = ""
    for mutant in row.alive:
        functions = ", ".join(mutant.functions)
        text += (
            f"[[equivalent]]\n"
            f"exercise = '{row.stem}'\n"
            f"why = ''  # {mutant.kind}, {functions}\n"
            f"[[equivalent.mutants]]\n"
            f"name = '{mutant.name}'\n"
            f"diff = '''\n{mutant.diff}'''\n\n"
        )
    return text
