"""Shows that wrong variants of right solutions fail, and that right variants pass.

A mutant is a right solution with one change that should make it wrong; some are right all the same,
and are known as equivalent. A rewrite is a right solution in other words.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.authoring.lint import Finding, solutions
from gpudojo.authoring.mutants import mutants
from gpudojo.authoring.rewrites import rewrites
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


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    mutants: list[Known]
    quote: str = ""


def equivalents(path: Path) -> list[Equivalent]:
    """The entries of a day's file; none where there is no file.

    Raises BadClass where it cannot be read.
    """
    if not path.is_file():
        return []
    try:
        return msgspec.convert(
            tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", []), list[Equivalent]
        )
    except (ValueError, msgspec.ValidationError) as error:
        raise BadClass(f"{path}: {error}") from None


def doubtful(
    exercise: Exercise, entries: Sequence[Equivalent], made: Sequence[Variant], root: Path, day: str
) -> Iterator[Finding]:
    """Findings about entries that cannot be relied on.

    These are entries without a reason, with words that the reference's file does not have, or about
    mutants that are not made any more.
    """
    there = {one.name: one.diff for one in made}
    reference = (root / "reference" / day / f"{exercise.stem}.py").read_text(encoding="utf-8")
    for entry in entries:
        where = f"{EQUIVALENT}: {entry.why[:40]!r}"
        if len(entry.why.split()) < 3:
            yield Finding(exercise.stem, f"{where}: give a reason in a sentence")
        if entry.quote and " ".join(entry.quote.split()) not in " ".join(reference.split()):
            yield Finding(
                exercise.stem, f"{where}: the reference's file does not say {entry.quote!r}"
            )
        for one in entry.mutants:
            if _plain(there.get(one.name, "")) != _plain(one.diff):
                yield Finding(
                    exercise.stem,
                    f"{where}: there is no such mutant any more: {one.name}\n{one.diff}",
                )


def _plain(diff: str) -> str:
    """A diff without what versions of Python write differently."""
    return "".join(letter for letter in diff if letter not in "()\"' ")


@dataclass
class FairnessRow:
    """What became of one exercise's variants."""

    stem: str
    mutants: int = 0
    rewrites: int = 0
    equivalent: list[Variant] = field(default_factory=list)
    alive: list[Variant] = field(default_factory=list)
    failing: list[tuple[Variant, CheckRow]] = field(
        default_factory=list
    )  # with the first check that it fails
    findings: list[Finding] = field(default_factory=list)


def originals(day: str, exercise: Exercise, root: Path) -> list[tuple[str, str]]:
    """The reference and the kept right solutions: names and sources."""
    reference = (root / "reference" / day / f"{exercise.stem}.py").read_text(encoding="utf-8")
    kept = [one for one in solutions(root / "tests" / day, exercise.stem) if not one.wrong]
    return [("reference", reference), *((one.path.stem, one.source) for one in kept)]


def all_mutants(
    day: str, exercise: Exercise, root: Path, only: Container[str] | None = None
) -> list[list[Variant]]:
    """The mutants of every right solution, or of those named in `only`; a list for each."""
    stub = root / "exercises" / day / f"{exercise.stem}.py"
    given = stub.read_text(encoding="utf-8") if stub.is_file() else ""
    names = [function.name for function in exercise.functions]
    tried = [one for one in originals(day, exercise, root) if only is None or one[0] in only]
    return [mutants(source, name, names, given) for name, source in tried]


def examine(
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
    before is not run again.
    """
    # Choose the mutants and the rewrites.
    every = all_mutants(day, exercise, root)
    names = [function.name for function in exercise.functions]
    changed = choose_variants(every, limit)
    written = [rewrites(source, name, names) for name, source in originals(day, exercise, root)]
    same = choose_variants(written, limit and -(-limit // 3))
    row = FairnessRow(exercise.stem, len(changed), len(same))
    # What the author knows to be right.
    entries = [
        each
        for each in equivalents(root / "tests" / day / EQUIVALENT)
        if each.exercise == exercise.stem
    ]
    known = {one.name for entry in entries for one in entry.mutants}
    row.findings += doubtful(exercise, entries, [one for each in every for one in each], root, day)
    results = dict(
        _graded(day, exercise, [*changed, *same], root, out / exercise.stem, progress, jobs)
    )
    # Mutants should lose points, unless they are known; rewrites should lose none.
    for variant in changed:
        if all(check.points == check.max_points for check in results[variant.name]):
            if variant.name in known:
                row.equivalent.append(variant)
            else:
                row.alive.append(variant)
        elif variant.name in known:
            text = f"{EQUIVALENT}: {variant.name} is not equivalent, for it loses points\n{variant.diff}"
            row.findings.append(Finding(exercise.stem, text))
    for variant in same:
        lost = [check for check in results[variant.name] if check.points < check.max_points]
        row.failing += [(variant, check) for check in lost[:1]]
    return row


def _graded(
    day: str,
    exercise: Exercise,
    variants: Sequence[Variant],
    root: Path,
    out: Path,
    progress: Progress,
    jobs: int,
) -> Iterator[tuple[str, list[CheckRow]]]:
    """The name of each variant, and the checks of its functions; run as a class is.

    Writes the variants and the results below `out`.
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
    # Of the results, those of the functions that the change may concern.
    functions = {variant.name: variant.functions for variant in variants}
    for row in iterate(ClassGrading(options, progress).run().path):
        checks = [check for each in row.exercises for check in each.checks]
        yield (
            row.submission,
            [check for check in checks if check.function in functions[row.submission]],
        )


def as_entries(row: FairnessRow) -> str:
    """The mutants that are alive, as entries that lack a reason."""
    text = ""
    for variant in row.alive:
        text += f"[[equivalent]]\nexercise = '{row.stem}'\nwhy = ''  # {variant.kind}, {', '.join(variant.functions)}\n"
        text += (
            f"[[equivalent.mutants]]\nname = '{variant.name}'\ndiff = '''\n{variant.diff}'''\n\n"
        )
    return text
