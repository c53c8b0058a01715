"""Proves that a day is fit for students: its stubs, solutions, lessons, hints and points."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpudojo.authoring.findings import Finding, place_in
from gpudojo.authoring.kept_solutions import (
    SHARED_PREFIX,
    Solution,
    kept_solutions,
    reference_path,
)
from gpudojo.authoring.lesson_records import lesson_problems
from gpudojo.authoring.lint_declarations import (
    completeness_findings,
    declaration_findings,
    functions_not_in_reference,
    hint_findings,
    leak_findings,
    misconception_findings,
)
from gpudojo.authoring.lint_solutions import (
    reference_and_stub_findings,
    too_few_spellings,
    trial_findings,
    unnoticed_checks,
)
from gpudojo.model.catalogue import (
    exercises_of,
    mistakes_for,
    registered_days,
    source_files,
)
from gpudojo.model.errors import BadMarkers, suggest_name
from gpudojo.model.exercise import Exercise

NOTE: Final = re.compile(r"\bTODO: (.*?)\s*(?:\"\"\"|\",?)?$", re.M)
# How the note begins that keeps an exercise unfinished to the end.
LAST_NOTE: Final = "delete this line "


@dataclass
class LintRow:
    """What was counted for one exercise."""

    stem: str
    points: float
    functions: int
    checks: int
    wrong: int
    notes: int = 0  # what the author has still to do
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Add a finding; in an exercise that is still being written, as a warning."""
        self.findings.append(replace(finding, warning=finding.warning or bool(self.notes)))


@dataclass
class LintReport:
    """What was found in a day: a row for each exercise, and what concerns no single one."""

    rows: list[LintRow]
    general: list[Finding]

    @property
    def unfinished(self) -> list[str]:
        return [row.stem for row in self.rows if row.notes]

    @property
    def findings(self) -> list[Finding]:
        """Everything that was found, what concerns no single exercise first."""
        every = list(self.general)
        for row in self.rows:
            every += row.findings
        return every

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.warning]


def lint_day(day: str, root: Path, quick: bool = False) -> LintReport:
    """Find everything that is not as it should be in a day; `quick` does not run the solutions.

    Runs references, stubs and lessons in this process. Raises BadDay where the day cannot be
    imported, other DojoErrors where something cannot be graded, and OSError.
    """
    solutions = kept_solutions(root / "tests" / day)
    rows = []
    for exercise in exercises_of(day):
        own_solutions = [each for each in solutions if each.exercise == exercise.stem]
        rows.append(lint_exercise(exercise, day, root, own_solutions, quick))
    # What concerns the whole day.
    unfinished = [row.stem for row in rows if row.notes]
    general = [
        *completeness_findings(day, unfinished),
        *misconception_findings(day, solutions, bool(unfinished), root),
        *hint_findings(day, root),
        *_leaks(day, root),
        *_misplaced_solutions(day, solutions, root),
    ]
    # What concerns one exercise after all belongs to its row.
    rows_by_name = {}
    folder = registered_days()[day].folder
    for exercise, row in zip(exercises_of(day), rows, strict=True):
        rows_by_name[exercise.stem] = row
        for path in source_files(day, exercise):
            rows_by_name[path.relative_to(folder).as_posix()] = row
    of_day = []
    for finding in general:
        if finding.exercise in rows_by_name:
            rows_by_name[finding.exercise].add(finding)
        else:
            of_day.append(finding)
    return LintReport(rows, of_day)


def _leaks(day: str, root: Path) -> list[Finding]:
    """Findings about lines of solutions that students could read.

    None where marks of a reference do not match, which is said of its exercise. Raises OSError.
    """
    try:
        return list(leak_findings(day, root))
    except BadMarkers:
        return []


def _misplaced_solutions(day: str, solutions: Sequence[Solution], root: Path) -> Iterator[Finding]:
    """Yield findings about wrong solutions that name no check, and solutions of no exercise.

    Raises BadDay where the day cannot be imported.
    """
    stems = {exercise.stem for exercise in exercises_of(day)}
    for solution in solutions:
        if solution.wrong and solution.claim is None:
            text = "its first line does not say which check it fails; "
            text += "write: # fails: FUNCTION::CHECK as -"
            yield Finding(solution.exercise, text, place=solution.place(root))
        if solution.exercise not in stems:
            hint = suggest_name(solution.exercise, stems)
            text = f"{day} has no exercise {solution.exercise}{hint}"
            yield Finding(solution.exercise, text, place=solution.place(root))


def lint_exercise(
    exercise: Exercise, day: str, root: Path, solutions: Sequence[Solution], quick: bool
) -> LintRow:
    """The row of one exercise, with everything that was found in it.

    In an exercise that is still being written, all findings are warnings. Runs the reference, the
    stub and the lesson, and the solutions unless it is `quick`. Raises BadDay for the day's files,
    other DojoErrors where something cannot be graded, and OSError.
    """
    notes = unfinished_notes(day, exercise, root)
    right = [each for each in solutions if not each.wrong]
    wrong = [each for each in solutions if each.wrong]
    row = LintRow(
        exercise.stem,
        exercise.points,
        functions=len(exercise.functions),
        checks=sum(len(function.checks) for function in exercise.functions),
        wrong=len(wrong),
        notes=len(notes),
    )
    row.findings += declaration_findings(exercise, mistakes_for(day), root)
    path = reference_path(root, day, exercise.stem)
    row.findings += functions_not_in_reference(exercise, path, root)
    broken = {name for finding in row.findings for name in finding.breaks}
    row.findings += reference_and_stub_findings(exercise, day, root, broken)
    # What these are about is not tried below: everything there would follow from them.
    broken = {name for finding in row.findings for name in finding.breaks}
    for problem in lesson_problems(day, exercise.stem, root):
        row.findings.append(Finding(exercise.stem, problem))
    # Whether there are enough solutions. Where one kind is kept elsewhere, nothing is said of it.
    names_kept = [path.name for path in (root / "tests" / day).glob("*")]
    kinds_kept = {name.partition("_")[0] for name in names_kept}
    shared = root / "tests" / day / f"{SHARED_PREFIX}{exercise.stem}.py"
    where = ""
    if shared.is_file():
        where = place_in(shared, root)
    if kinds_kept & {"right", "solutions"}:
        row.findings += too_few_spellings(exercise, right, root, where)
    if kinds_kept & {"wrong", "solutions"}:
        row.findings += unnoticed_checks(exercise, wrong, root, where)
    # What the solutions show, once there is a reference to compare with.
    is_written = all(note.text.startswith(LAST_NOTE) for note in notes)
    if is_written and not quick:
        row.findings += trial_findings(exercise, solutions, day, root, broken)
    # Unfinished: first what to do next.
    if notes:
        step = next_step(exercise, notes, row.findings, root)
        warnings = [replace(finding, warning=True) for finding in row.findings]
        row.findings = [step, *warnings]
    return row


@dataclass(frozen=True)
class Note:
    """A line `TODO: …` that an author has to work on."""

    path: Path
    line: int
    text: str


def unfinished_notes(day: str, exercise: Exercise, root: Path) -> list[Note]:
    """The notes on what is left to do, in the order of work.

    That is the reference, the exercise, the solutions; then the note that is to be deleted last.
    Raises BadDay where the day cannot be imported, and OSError.
    """
    tests = root / "tests" / day
    paths = [
        reference_path(root, day, exercise.stem),
        *source_files(day, exercise),
        tests / f"{SHARED_PREFIX}{exercise.stem}.py",
        *sorted((tests / "right" / exercise.stem).glob("*.py")),
        *sorted((tests / "wrong" / exercise.stem).glob("*.py")),
    ]
    notes = []
    for path in paths:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        for match in NOTE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            notes.append(Note(path, line, match[1]))
    return sorted(notes, key=lambda note: note.text.startswith(LAST_NOTE))


def next_step(
    exercise: Exercise, notes: Sequence[Note], findings: Sequence[Finding], root: Path
) -> Finding:
    """The finding that says what to do next: a note, other findings, at last the last note."""
    note = notes[0]
    if note.text.startswith(LAST_NOTE) and findings:
        step = findings[0].text
        if findings[0].place:
            step = str(findings[0])
    else:
        path = str(note.path)
        if note.path.is_relative_to(root):
            path = note.path.relative_to(root).as_posix()
        step = f"{path}:{note.line}: {note.text}"
    if len(notes) == 1:
        count = "1 note"
    else:
        count = f"{len(notes)} notes"
    text = f"unfinished, {count} left; next: {step}"
    return Finding(exercise.stem, text, warning=True)
