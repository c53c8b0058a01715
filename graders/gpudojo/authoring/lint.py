"""Proves that a day is fit for students: its stubs, solutions, hints and points.

It also runs the code of lessons again, and compares with what they say was recorded.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import gc
import io
import re
import shutil
import tempfile
import textwrap
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from virtual_cuda.ledger import (
    COLUMNS,
    MARKS,
    Ledger,
    draw_timeline,
    line_rows,
    plain_lines,
    timeline_of,
)

from gpudojo.authoring.variants import parse_solution
from gpudojo.grading.bindings import find_bindings
from gpudojo.grading.call import restore_shared_modules
from gpudojo.grading.engine import grade_function
from gpudojo.grading.load import load_submission
from gpudojo.grading.references import Reference, ReferenceSolution
from gpudojo.grading.sources import Unparsable, parse_source
from gpudojo.model.catalogue import (
    exercises_of,
    general_mistakes,
    misconceptions_of,
    registered_days,
    size_of_complete_day,
    source_files,
)
from gpudojo.model.errors import BadDay, BadMarkers, DojoError
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.lessons import (
    LESSONS_FOLDER,
    SETUP,
    Snippet,
    lesson_path,
    lesson_text,
    lines_never_run,
    snippets,
)
from gpudojo.model.results import CheckResult
from gpudojo.release.leaks import leaks as leaked_lines
from gpudojo.release.stubs import solution_blocks, stub_of, stubs_of_day, telling_lines

WIDTH: Final = 76  # of a terminal with 80 columns, within the frame of a code block
LONGEST: Final = 170  # characters of an error
RECORDING_SEED: Final = 8
UNUSED: Final = "allocated"  # the column that lessons do without: they need the room for code
QUESTIONS: Final = 3
SETUP_FILE: Final = f"{SETUP}.py"
NBSP: Final = "\N{NO-BREAK SPACE}"
PRINTED: Final = "printed: "
ERROR: Final = "error: "
NOTHING: Final = "The device was not used."


def filled(source: str) -> str:
    """The source of a lesson with every snippet run anew, and what the device recorded below it."""
    setup = "".join(snippet.code for snippet in snippets(source) if snippet.name == SETUP)
    for snippet in reversed(snippets(source)):
        if snippet.name != SETUP:
            block = f"```text\n{recorded(snippet, setup)}\n```\n"
            source = source[: snippet.end] + block + source[snippet.after :]
    return source


def remake(day: str, stem: str) -> Path | None:
    """Fill the lesson of an exercise anew; returns its path, or None if nothing changed."""
    path = lesson_path(day, stem)
    if path is None or (made := filled(source := path.read_text(encoding="utf-8"))) == source:
        return None
    path.write_text(made, encoding="utf-8", newline="\n")
    return path


def recorded(snippet: Snippet, setup: str = "") -> str:
    """A text on what a snippet did on a virtual GPU of its own.

    It has a table of its lines or a timeline, then what it printed, then its error. Raises BadDay
    where the options of the snippet are wrong.
    """
    import torch  # not at the top: `dojo lint --help` does without
    from virtual_cuda import virtual_cuda

    file = f"{snippet.name}.py"
    said = io.StringIO()
    error = ""
    names: dict[str, Any] = {"__name__": "__main__"}
    # Run the setup and the snippet, the same way each time.
    with contextlib.ExitStack() as around:
        around.enter_context(torch.random.fork_rng(devices=[]))
        try:
            made_for = int(snippet.options.get("gpus", 1)), snippet.options.get("memory", "8GiB")
            gpu = around.enter_context(virtual_cuda(*made_for))
        except ValueError as wrong:
            raise BadDay(
                f"a lesson's snippet {snippet.name!r}", snippet.line, str(wrong)
            ) from wrong
        around.enter_context(contextlib.redirect_stdout(said))
        if gc.isenabled():  # memory is freed at the same moments each time
            gc.disable()
            around.callback(gc.enable)
        torch.manual_seed(RECORDING_SEED)
        mark = gpu.ledger.mark()
        try:
            exec(compile(setup, SETUP_FILE, "exec"), names)
            mark = gpu.ledger.mark()
            said.seek(said.truncate(0))  # what the setup printed is not shown
            exec(compile(snippet.code, file, "exec"), names)
        except Exception as raised:
            error = f"{type(raised).__module__}.{type(raised).__name__}: {raised}".removeprefix(
                "builtins."
            )
        made = gpu.ledger.since(mark)
        names.clear()
    # Draw what was recorded.
    draw = _timeline if "timeline" in snippet.options else _table
    parts = [draw(made, file, snippet.code.splitlines(), setup.splitlines()) or NOTHING]
    if printed := said.getvalue().rstrip():
        parts.append(PRINTED + printed.replace("\n", "\n" + " " * len(PRINTED)))
    if error:
        first = textwrap.shorten(
            error.splitlines()[0], LONGEST, placeholder=" …"
        )  # general advice follows in some
        parts.append(
            textwrap.fill(first, WIDTH, initial_indent=ERROR, subsequent_indent=" " * len(ERROR))
        )
    return "\n".join(parts)


def _table(made: Ledger, file: str, code: list[str], setup: list[str]) -> str:
    """A table with a row for each line that did something.

    It has a column for each kind of thing. Lines of the setup have no number.
    """
    # The lines that did something, and the columns with anything in them.
    own = [(f"{row.number:2}", row) for row in line_rows(made.records, file, code)]
    called = [("", row) for row in line_rows(made.records, SETUP_FILE, setup)]
    rows = [(number, row) for number, row in (*own, *called) if any(row.cells)]
    names = list(enumerate(COLUMNS))
    used = [
        place
        for place, name in names
        if name != UNUSED and any(row.cells[place] for _, row in rows)
    ]
    heads = [name for place, name in names if place in used]
    body = [
        (f"{number:2}  {row.code}", [row.cells[place] for place in used]) for number, row in rows
    ]
    # What the columns leave of the width is for code.
    widths = [
        max(map(len, column)) for column in zip(heads, *(cells for _, cells in body), strict=True)
    ]
    lines = [("recorded, by line", heads), *body] if body else []
    room = min(WIDTH - sum(widths) - 2 * len(widths), max([0, *(len(text) for text, _ in lines)]))
    return "\n".join(
        f"{text if len(text) <= room else f'{text[: room - 1]}…':{room}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for text, cells in lines
    )


def _timeline(made: Ledger, file: str, code: list[str], setup: list[str]) -> str:
    """The lanes of a timeline, and the meaning of the signs in it.

    Empty where the device was not used.
    """
    if not len(made):
        return ""
    timeline = timeline_of(made.records, file, file, file, source=code)
    drawn = plain_lines(draw_timeline(timeline, WIDTH))[
        1:-1
    ]  # without its heading, and the reference
    # Between the lanes of host and device are copies, with their sizes: letters there are units.
    lanes = [
        line[9:] if place != 1 else re.sub(r"[\w.]", "", line[9:])
        for place, line in enumerate(drawn[:3])
    ]
    signs = [
        f"{sign} {meaning}"
        for sign, meaning in MARKS.values()
        if any(sign in lane for lane in lanes)
    ]
    legend = textwrap.wrap("   ".join(sign.replace(" ", NBSP) for sign in signs), WIDTH)
    return "\n".join(
        ["recorded, in order:", *filter(None, drawn), *(line.replace(NBSP, " ") for line in legend)]
    )


def _given_away(name: str, source: str, reference: Path) -> Iterator[str]:
    """Lines of solutions that a lesson shows, short ones too.

    None where a reference has no good markers yet: lint says that elsewhere.
    """
    with contextlib.suppress(BadMarkers):
        found = list(map(str, leaked_lines({name: source.encode()}, reference)))
        shown_anyway = {
            line.strip() for stub in stubs_of_day(reference).values() for line in stub.splitlines()
        }
        lines = {line.strip() for line in source.splitlines()} - shown_anyway
        for path in sorted(reference.glob("*.py")) if not found else ():
            numbered = (
                line
                for block in solution_blocks(path.read_text(encoding="utf-8"))
                for line in block
            )
            told = ((number, text.strip()) for number, text in numbered if text.strip() in lines)
            found += [
                f"{name} shows line {number} of {path.name}: {text}"
                for number, text in told
                if text
            ]
        yield from found


def problems(day: str, stem: str, root: Path) -> Iterator[str]:
    """Sentences about what is wrong with the lesson of an exercise.

    There are none for a day without lessons.
    """
    path = lesson_path(day, stem)
    if path is None:
        if (registered_days()[day].folder / LESSONS_FOLDER).is_dir():
            yield f"it has no lesson {LESSONS_FOLDER}/{stem}.md"
        return
    name = f"{LESSONS_FOLDER}/{path.name}"
    source = path.read_text(encoding="utf-8")
    for line in lines_never_run(source):
        yield f"{name}, line {line}: nothing runs this code; write <!-- run: NAME --> above it"
    if not {"wrong", "right"} <= {snippet.name for snippet in snippets(source)}:
        yield f"{name} has no snippet called wrong, or none called right"
    if lesson_text(source, folded=True).count("</details>") != QUESTIONS:
        yield f"{name} does not have {QUESTIONS} questions with answers"
    yield from _given_away(name, source, root / "reference" / day)
    made = filled(source)
    if any(one.name == "right" and f"\n{ERROR}" in (one.recorded or "") for one in snippets(made)):
        yield f"{name}: the snippet called right ends with an error"
    if made != source:
        yield f"{name}: what was recorded is out of date; run: dojo lesson {stem.partition('_')[0]} --remake"


HEADER: Final = re.compile(r"# fails: (\w+)::(\w+) as ([\w-]+)\s*$")
SHARED: Final = (
    "solutions_"  # not the exercise's own name, by which pytest would take the file for a student's
)
_EXPECTED: Final = re.compile(r"(?m)^# (passes\b|fails\b).*$")


@dataclass(frozen=True)
class Solution:
    """A solution, in a file of its own; one that shares a file has been copied out of it."""

    path: Path
    where: str  # for messages: "wrong/no_step.py", "solutions_01_brightest_sprite.py, line 12"
    wrong: bool

    @property
    def exercise(self) -> str:
        return self.path.parent.name

    @property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def claim(self) -> tuple[str, str, str | None] | None:
        """The function, check and misconception that a wrong solution says it fails.

        None where it does not say so.
        """
        match = HEADER.match(self.source.partition("\n")[0])
        return (match[1], match[2], None if match[3] == "-" else match[3]) if match else None


def solutions(folder: Path, exercise: str = "*") -> list[Solution]:
    """The solutions in a day's folder of tests, of one exercise or all: first the right ones."""
    found = [
        Solution(path, f"{kind}/{path.name}", kind == "wrong")
        for kind in ("right", "wrong")
        for path in sorted((folder / kind).glob(f"{exercise}/*.py"))
    ]
    shared = [
        one
        for path in sorted(folder.glob(f"{SHARED}{exercise}.py"))
        for one in _split_shared_file(path)
    ]
    return sorted([*found, *shared], key=lambda solution: (solution.wrong, solution.exercise))


def _split_shared_file(path: Path) -> list[Solution]:
    """Write each solution of a shared file to a file of its own, and return them.

    The files lie below a folder that is removed when Python exits.
    """
    text = path.read_text(encoding="utf-8")
    starts = [match.start() for match in _EXPECTED.finditer(text)]
    target = Path(tempfile.mkdtemp(dir=_folder_until_exit())) / path.parent.name
    found = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        header, _, body = text[start:end].partition("\n")
        line = text.count("\n", 0, start) + 1
        wrong = header.startswith("# fails")
        # As in the other layout, DAY/KIND/EXERCISE/NAME.py: who reads a solution need not know
        # which it is.
        file = (
            target
            / ("wrong" if wrong else "right")
            / path.stem.removeprefix(SHARED)
            / f"line_{line}.py"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{header}\n{text[: starts[0]]}{body}", encoding="utf-8")
        found.append(Solution(file, f"{path.name}, line {line}", wrong))
    return found


@functools.cache
def _folder_until_exit() -> str:
    folder = tempfile.mkdtemp(prefix="gpudojo-solutions-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


SEED: Final = 8
SPELLINGS: Final = (
    4  # right solutions of each function: with fewer, a check that accepts only one is not noticed
)
NOTE: Final = re.compile(r"\bTODO: (.*?)\s*(?:\"\"\"|\",?)?$", re.M)
VALUES: Final = (
    *(
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
    ),
    *("torch.empty(0)", "object()"),
)
STEPS: Final = 3  # hints on a misconception
LAST: Final = (
    "delete this line "  # how the note begins that keeps an exercise unfinished to the end
)


@dataclass(frozen=True)
class Finding:
    exercise: str
    text: str
    warning: bool = False


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


@dataclass
class LintReport:
    rows: list[LintRow]
    general: list[Finding]

    @property
    def unfinished(self) -> list[str]:
        return [row.stem for row in self.rows if row.notes]

    @property
    def findings(self) -> list[Finding]:
        return [*self.general, *(finding for row in self.rows for finding in row.findings)]

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.warning]


def lint(name: str, root: Path, quick: bool = False) -> LintReport:
    """Everything that is not as it should be in a day; `quick` does not run the solutions.

    Raises BadDay.
    """
    exercises = {exercise.stem: exercise for exercise in exercises_of(name)}
    tried = solutions(root / "tests" / name)
    rows = [
        examined(e, name, root, [one for one in tried if one.exercise == e.stem], quick)
        for e in exercises_of(name)
    ]
    # What concerns the whole day.
    unfinished = [row.stem for row in rows if row.notes]
    general = [*wholeness(name, unfinished), *named_mistakes(name, tried, bool(unfinished))]
    general += steep_hints(name, root)
    # Wrong solutions that name no check, and solutions of exercises that the day does not have.
    for one in tried:
        if one.wrong and one.claim is None:
            general.append(
                Finding(
                    one.exercise, f"{one.where}: its first line does not say which check it fails"
                )
            )
        if one.exercise not in exercises:
            general.append(
                Finding(one.exercise, f"{one.where}: {name} has no exercise {one.exercise}")
            )
    # What is found under these names is found in something unfinished.
    folder = registered_days()[name].folder
    files = [path for stem in unfinished for path in source_files(name, exercises[stem])]
    own = {*unfinished, *(path.relative_to(folder).as_posix() for path in files)}
    return LintReport(
        rows, [replace(found, warning=found.warning or found.exercise in own) for found in general]
    )


def examined(
    exercise: Exercise, name: str, root: Path, tried: Sequence[Solution], quick: bool
) -> LintRow:
    """The row of one exercise, with everything that was found in it.

    In an exercise that is still being written, all findings are warnings.
    """
    left = notes(name, exercise, root)
    wrong = [one for one in tried if one.wrong]
    checks = sum(len(function.checks) for function in exercise.functions)
    row = LintRow(
        exercise.stem, exercise.points, len(exercise.functions), checks, len(wrong), notes=len(left)
    )
    row.findings += declared(exercise, misconceptions_of(name))
    row.findings += stub_and_reference(exercise, name, root)
    row.findings += [Finding(exercise.stem, text) for text in problems(name, exercise.stem, root)]
    # What the solutions show, and whether there are enough of them.
    kept = {path.name.partition("_")[0] for path in (root / "tests" / name).glob("*")}
    if kept & {"right", "solutions"}:  # where one kind is kept elsewhere, nothing is said of it
        row.findings += too_few_spellings(exercise, [one for one in tried if not one.wrong])
    if kept & {"wrong", "solutions"}:
        row.findings += unnoticed_checks(exercise, wrong)
    if not quick and all(
        note.text.startswith(LAST) for note in left
    ):  # there is a reference to compare with
        row.findings += tried_out(exercise, tried, name, root)
    # Unfinished: first what to do next.
    if left:
        step = next_step(exercise, left, row.findings, root)
        row.findings = [step, *(replace(finding, warning=True) for finding in row.findings)]
    return row


@dataclass(frozen=True)
class Note:
    """A line `TODO: …` that an author has to work on."""

    path: Path
    line: int
    text: str


def notes(name: str, exercise: Exercise, root: Path) -> list[Note]:
    """The notes on what is left to do, in the order of work.

    That is the reference, the exercise, the solutions; then the note that is to be deleted last.
    """
    tests = root / "tests" / name
    paths = [root / "reference" / name / f"{exercise.stem}.py", *source_files(name, exercise)]
    paths += [tests / f"{SHARED}{exercise.stem}.py"]
    paths += [
        path
        for kind in ("right", "wrong")
        for path in sorted((tests / kind / exercise.stem).glob("*.py"))
    ]
    texts = [(path, path.read_text(encoding="utf-8")) for path in paths if path.is_file()]
    found = [
        Note(p, text.count("\n", 0, m.start()) + 1, m[1])
        for p, text in texts
        for m in NOTE.finditer(text)
    ]
    return sorted(found, key=lambda note: note.text.startswith(LAST))


def next_step(
    exercise: Exercise, found: Sequence[Note], findings: Sequence[Finding], root: Path
) -> Finding:
    """The finding that says what to do next: a note, other findings, at last the last note."""
    note = found[0]
    path = (
        note.path.relative_to(root).as_posix() if note.path.is_relative_to(root) else str(note.path)
    )
    last = note.text.startswith(LAST)
    said = findings[0].text if last and findings else f"{path}:{note.line}: {note.text}"
    count = f"{len(found)} note{'s' * (len(found) > 1)} left"
    return Finding(exercise.stem, f"unfinished, {count}; next: {said}", warning=True)


def declared(exercise: Exercise, mistakes: Container[str] = ()) -> Iterator[Finding]:
    """Findings about what an exercise says of itself: hints, probes, checks and points."""
    if not exercise.functions:
        yield Finding(exercise.stem, "it has no functions")
    for function in exercise.functions:
        if not function.hints:
            yield Finding(exercise.stem, f"`{function.name}` has no hints")
        if not function.probes or not function.checks:
            yield Finding(exercise.stem, f"`{function.name}` has no probes or no checks")
        # Hints and needs must name what there is.
        names = [check.name for check in function.checks]
        for key in function.written_hints.keys:
            if key not in names and key not in mistakes:
                yield Finding(
                    exercise.stem,
                    f"`{function.name}` has hints on {key!r}, no check of it and no mistake",
                )
        for check in function.checks:
            for need in check.needs:
                if need not in names[: names.index(check.name)]:
                    yield Finding(
                        exercise.stem,
                        f"{function.name}::{check.name} needs {need!r}, not judged before it",
                    )
        for twice in sorted({check for check in names if names.count(check) > 1}):
            yield Finding(exercise.stem, f"`{function.name}` has two checks named {twice}")
    # The points.
    total = sum(function.points for function in exercise.functions)
    if total != exercise.points:
        yield Finding(
            exercise.stem, f"the points of its checks add up to {total:g}, not {exercise.points:g}"
        )


def wholeness(name: str, unfinished: Sequence[str] = ()) -> Iterator[Finding]:
    """Findings about exercises or points that a day lacks, or has twice."""
    count, points = size_of_complete_day(name)
    numbers = [exercise.number for exercise in exercises_of(name)]
    missing = [f"{number:02}" for number in range(1, count + 1) if f"{number:02}" not in numbers]
    total = sum(exercise.points for exercise in exercises_of(name))
    if missing:
        said = (
            f"exercises {', '.join(missing)} are missing; {total:g} of {points:g} points are there"
        )
        yield Finding(name, said, warning=True)
    elif total != points:
        more = f"; correct this before you finish {' and '.join(unfinished)}" if unfinished else ""
        yield Finding(
            name, f"the points add up to {total:g}, not {points:g}{more}", warning=bool(unfinished)
        )
    for twice in sorted({number for number in numbers if numbers.count(number) > 1}):
        yield Finding(name, f"two exercises have the number {twice}")


def stub_and_reference(exercise: Exercise, name: str, root: Path) -> Iterator[Finding]:
    """Findings where the reference does not pass, or the stub is not all to do.

    Also where the stub gives something away.
    """
    reference, stub = (
        root / folder / name / f"{exercise.stem}.py" for folder in ("reference", "exercises")
    )
    for path, wanted in ((reference, "passed"), (stub, "to do")):
        if not path.is_file():
            yield Finding(exercise.stem, f"{path.relative_to(root)} is missing")
            continue
        # Every check must have the outcome that is wanted of this file.
        for function in exercise.functions:
            try:
                measure = (
                    ReferenceSolution(reference)
                    if path != reference and reference.is_file()
                    else None
                )
                results = graded(exercise, function, path, measure)
            except DojoError as error:
                yield Finding(exercise.stem, f"`{function.name}` cannot be graded: {error}")
                continue
            for result in results:
                if result.outcome != wanted:
                    said = f"is {result.outcome}, not {wanted}" + f": {result.happened}" * bool(
                        result.happened
                    )
                    yield Finding(
                        exercise.stem, f"{path.parts[-3]}: {function.name}::{result.check} {said}"
                    )
    # What the stub shows of the solution.
    if reference.is_file() and stub.is_file():
        yield from leaks(exercise.stem, reference, stub)


def leaks(stem: str, reference: Path, stub: Path) -> Iterator[Finding]:
    """Findings about lines of the solution that a student can read in the stub."""
    source = reference.read_text(encoding="utf-8")
    shown = stub.read_text(encoding="utf-8")
    try:
        fresh = stub_of(source, str(reference))
    except DojoError as error:
        yield Finding(stem, str(error))
        return
    if fresh != shown:
        yield Finding(stem, "the stub is stale; run: dojo release stubs")
    visible = {line.strip() for line in shown.splitlines()}
    for number, line in telling_lines(source):
        if line in visible:
            yield Finding(stem, f"the stub shows line {number} of the solution: {line}")


def graded(
    exercise: Exercise, function: Function, path: Path, reference: Reference | None
) -> list[CheckResult]:
    """The results of one function of a file, on the virtual device.

    Without a reference, the file is its own.
    """
    with restore_shared_modules():
        return grade_function(exercise, function, load_submission(path), reference, "virtual", SEED)


def too_few_spellings(exercise: Exercise, right: Sequence[Solution]) -> Iterator[Finding]:
    """Findings about functions with too few right solutions.

    With few, a check that accepts only one spelling is not noticed.
    """
    counts = dict.fromkeys((function.name for function in exercise.functions), 0)
    for one in right:
        try:
            bound = find_bindings(parse_source(one.source, one.path))
        except Unparsable as error:
            yield Finding(exercise.stem, f"{one.where} is not Python: {error.evidence.message}")
            continue
        for function in {name for name, _, stub in bound if not stub} & set(counts):
            counts[function] += 1
    for function, count in counts.items():
        if count < SPELLINGS:
            yield Finding(
                exercise.stem, f"`{function}` has {count} right solutions; it needs {SPELLINGS}"
            )


def unnoticed_checks(exercise: Exercise, wrong: Sequence[Solution]) -> Iterator[Finding]:
    """Findings about checks that no wrong solution says it fails.

    Also about claims that name a check which does not exist.
    """
    claimed = {"::".join(claim[:2]) for one in wrong if (claim := one.claim) is not None}
    there = {
        f"{function.name}::{check.name}"
        for function in exercise.functions
        for check in function.checks
    }
    for check in sorted(there - claimed):
        yield Finding(exercise.stem, f"{check} is tested by no wrong solution")
    for check in sorted(claimed - there):
        yield Finding(
            exercise.stem, f"a wrong solution says it fails {check}, which does not exist"
        )


def tried_out(
    exercise: Exercise, tried: Sequence[Solution], name: str, root: Path
) -> Iterator[Finding]:
    """Findings from running the solutions of an exercise.

    Right ones should pass, wrong ones fail as they say, and answers that do nothing earn nothing.
    """
    path = root / "reference" / name / f"{exercise.stem}.py"
    reference = ReferenceSolution(path, keep=True)
    try:  # before a file that may spoil this process
        for function in exercise.functions:
            reference.evidence(exercise, function, "virtual", SEED)
    except DojoError as error:
        yield Finding(exercise.stem, f"`{function.name}`: {error}")
        return
    yield from paid_for_nothing(exercise, path.read_text(encoding="utf-8"), reference)
    # A wrong solution is run for the function it claims to fail, a right one for all it defines.
    for one in tried:
        claim = one.claim if one.wrong else None
        if one.wrong and claim is None:
            continue
        for function in exercise.functions:
            defined = re.search(rf"(?m)^(def {function.name}\b|{function.name}\b *=)", one.source)
            if not (function.name == claim[0] if claim else defined):
                continue
            results = graded(exercise, function, one.path, reference)
            first = next((r for r in results if r.outcome not in ("passed", "blocked")), None)
            got = (
                f"{first.outcome} {first.check} as {first.misconception or '-'}"
                if first
                else "passed everything"
            )
            # Compare what happened with what the solution says.
            if claim is None and first is not None:
                yield Finding(
                    exercise.stem, f"{one.where} should pass and got: {got}: {first.happened}"
                )
            elif claim is not None and got != f"failed {claim[1]} as {claim[2] or '-'}":
                yield Finding(
                    exercise.stem,
                    f"{one.where} got: {got}; it says: {claim[1]} as {claim[2] or '-'}",
                )


def idle_answers(reference: str, function: str) -> Iterator[tuple[str, str]]:
    """Answers to a function that do nothing, made from its signature.

    Each is a pair: what is written, and the text of the file.
    """
    tree = parse_solution(reference)
    head = "".join(
        f"{ast.unparse(one)}\n" for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)
    )
    head = f"{head}import torch\n\n\n"
    found = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function]
    if not found:
        yield from (
            (f"{function} = {value}", f"{head}{function} = {value}\n") for value in ("...", *VALUES)
        )
        return
    given = found[-1].args
    each = [*given.posonlyargs, *given.args, *filter(None, [given.vararg]), *given.kwonlyargs]
    names = [one.arg for one in each]
    values = [*VALUES, *names, *([f"({', '.join(names)},)"] if names else [])]
    uses = ("{}[0]", "next(iter({}))", "len({})", "list({})", "getattr({}, 'device')")
    values += [use.format(name) for name in names[:1] for use in uses]
    for body in ("...", *(f"return {value}" for value in values), "raise ValueError"):
        yield body, f"{head}def {function}({ast.unparse(given)}):\n    {body}\n"


def paid_for_nothing(exercise: Exercise, source: str, reference: Reference) -> Iterator[Finding]:
    """Findings about answers that do nothing and earn points.

    `source` is that of the reference.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{exercise.stem}.py"
        for function in exercise.functions:
            answers = dict(idle_answers(source, function.name))
            paid: dict[str, float] = {}
            checks: dict[str, bool] = {}
            for said, text in answers.items():
                path.write_text(text, encoding="utf-8")
                results = graded(exercise, function, path, reference)
                checks |= {result.check: True for result in results if result.points}
                paid[said] = sum(result.points for result in results)
            best = max(paid, key=lambda said: paid[said])
            if paid[best]:
                count = f"{sum(map(bool, paid.values()))} of {len(paid)} answers to `{function.name}` that do nothing"
                most = f"the most, {paid[best]:g}, for `{best}`"
                yield Finding(
                    exercise.stem, f"{count} earn points, {most}; paid for: {', '.join(checks)}"
                )


def named_mistakes(
    name: str, tried: Sequence[Solution], unfinished: bool = False
) -> Iterator[Finding]:
    """Findings about misconceptions that the day does not declare or explain.

    Also about those that no wrong solution makes.
    """
    own = misconceptions_of(name)
    known = {**general_mistakes(), **own}
    folder = registered_days()[name].folder
    # Names in the code of the day.
    for path in sorted(folder.rglob("*.py")):
        for key, line in keys_in(path.read_text(encoding="utf-8")):
            if key not in known:
                said = f"line {line} names a misconception {key!r} that {name}'s misconceptions.toml does not have"
                yield Finding(path.relative_to(folder).as_posix(), said)
    wrong = [(one, claim) for one in tried if one.wrong and (claim := one.claim) is not None]
    if not wrong:
        return
    # Names in the wrong solutions.
    for one, claim in wrong:
        if claim[2] is not None and claim[2] not in known:
            yield Finding(one.exercise, f"{one.where}: {name} has no misconception {claim[2]!r}")
    unfinished = unfinished or any(finding.warning for finding in wholeness(name))
    for key in sorted(set(own) - {claim[2] for _, claim in wrong}):
        yield Finding(
            "misconceptions", f"no wrong solution makes the mistake {key!r}", warning=unfinished
        )
    # What the declared ones say.
    for key, mistake in known.items():
        if not mistake.name.strip() or not mistake.why.strip():
            yield Finding("misconceptions", f"{key!r} has no name or does not say why it matters")


def steep_hints(name: str, root: Path) -> Iterator[Finding]:
    """Findings about misconceptions without three different hints.

    Also about those whose first hint shows code of a reference.
    """
    paths = sorted((root / "reference" / name).glob("*.py"))
    solved = "\n".join(
        line for path in paths for _, line in telling_lines(path.read_text(encoding="utf-8"))
    )
    for key, mistake in {**general_mistakes(), **misconceptions_of(name)}.items():
        if (
            len({hint.strip() for hint in mistake.hints} - {""}) != STEPS
            or len(mistake.hints) != STEPS
        ):
            yield Finding(
                "misconceptions",
                f"{key!r} needs {STEPS} different hints and has {len(mistake.hints)}",
            )
        for code in re.findall(r"`([^`]+)`", (*mistake.hints, "")[0]):
            if code in solved:
                yield Finding(
                    "misconceptions", f"the first hint on {key!r} shows code of a reference: {code}"
                )


def keys_in(source: str) -> list[tuple[str, int]]:
    """The misconception keys a module's checks name, given by position or by name."""
    nodes = list(ast.walk(ast.parse(source)))
    functions = {node.name: node.args.args for node in nodes if isinstance(node, ast.FunctionDef)}
    named = (
        (name, place, each.arg)
        for name, given in functions.items()
        for place, each in enumerate(given)
    )
    places = {"Failed": 3} | {
        name: place for name, place, argument in named if argument == "misconception"
    }
    given = []
    for node in nodes:
        if isinstance(node, ast.Call):
            given += [keyword.value for keyword in node.keywords if keyword.arg == "misconception"]
            place = places.get(ast.unparse(node.func).rpartition(".")[2], len(node.args))
            given += node.args[place : place + 1]
    return [(text, value.lineno) for value in given for text in _texts(value)]


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts an expression may come out as."""
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*_texts(body), *_texts(orelse))
        case ast.BoolOp(values=values):
            yield from (text for value in values for text in _texts(value))
