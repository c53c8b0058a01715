"""Is a day fit for students? Stubs to do, references that pass, an enemy for every check, hints, points, no leak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graders.curriculum.catalogue import DAYS, day, sources, whole
from graders.curriculum.enemies import Enemy, enemies_of, without_enemy
from graders.curriculum.exercise import Exercise, Function
from graders.curriculum.keys import keys_in
from graders.curriculum.misconceptions import MISCONCEPTIONS
from graders.curriculum.progress import begun, next_step, notes, too_few_spellings
from graders.curriculum.report import Finding, Report, Row
from graders.errors import DojoError

if TYPE_CHECKING:
    from graders.evidence import Evidence
    from graders.results import CheckResult

SEED: Final = 8
# Shorter ones, and those that only open a block, stand in any code: they give nothing away.
TELLING: Final = 20


def lint(name: str, root: Path, quick: bool = False) -> Report:
    """Everything that is not as it should be. `quick` believes the wrong solutions' first lines."""
    rows, general = [], []
    enemies, unreadable = enemies_of(root / "tests" / name / "wrong")
    known = {exercise.stem for exercise in day(name)}
    general += unreadable
    general += [Finding(e.path.name, f"{e.path} is of no exercise") for e in enemies if e.path.parent.name not in known]
    has_enemies = (root / "tests" / name / "wrong").is_dir()
    for exercise in day(name):
        its = [enemy for enemy in enemies if enemy.path.parent.name == exercise.stem]
        rows.append(examined(exercise, name, root, its if has_enemies else None, quick))
    unfinished = [row.stem for row in rows if row.notes]
    general += wholeness(name, unfinished)
    elsewhere = [e for other in DAYS if other != name for e in enemies_of(root / "tests" / other / "wrong")[0]]
    general += misconceptions_of(name, enemies if has_enemies else None, elsewhere, bool(unfinished))
    written = {
        f"{path.parent.name}/{path.name}" for e in day(name) if e.stem in unfinished for path in sources(name, e)
    }
    own = written.union(unfinished)  # what is found under these names is found in something unfinished
    return Report(name, rows, [replace(f, warning=True) if f.exercise in own else f for f in general])


def examined(exercise: Exercise, name: str, root: Path, enemies: list[Enemy] | None, quick: bool) -> Row:
    """One exercise; all that is found in one that is still being written are warnings."""
    left = notes(name, exercise, root)
    checks = sum(len(function.checks) for function in exercise.functions)
    count = len(enemies or ())
    row = Row(exercise.stem, exercise.points, len(exercise.functions), checks, count, notes=len(left))
    row.findings += declared(exercise)
    row.findings += stub_and_reference(exercise, name, root)
    if (root / "tests" / name / "right").is_dir():
        row.findings += too_few_spellings(exercise, root / "tests" / name / "right")
    if enemies is not None:
        row.findings += without_enemy(exercise, enemies)
        if not quick and not begun(left):  # without a solution there is nothing that a wrong one differs from
            row.findings += believed(exercise, enemies, name, root)
    if left:
        step = next_step(exercise, left, row.findings, root)
        row.findings = [step, *(replace(finding, warning=True) for finding in row.findings)]
    return row


def declared(exercise: Exercise) -> Iterator[Finding]:
    """What an exercise says of itself."""
    if not exercise.functions:
        yield Finding(exercise.stem, "it has no functions")
    for function in exercise.functions:
        if not function.hints or any(not hint.strip() for hint in function.hints):
            yield Finding(exercise.stem, f"`{function.name}` has no hints, or an empty one")
        if not function.probes or not function.checks:
            yield Finding(exercise.stem, f"`{function.name}` has no probes or no checks")
        names = [check.name for check in function.checks]
        for key, advice in function.advice.items():
            if key not in names and key not in MISCONCEPTIONS:
                yield Finding(exercise.stem, f"`{function.name}` has advice on {key!r}, no check of it and no mistake")
            if advice.hint is not None and not 1 <= advice.hint <= len(function.hints):
                yield Finding(exercise.stem, f"`{function.name}` has no hint {advice.hint}, which is for {key!r}")
        for check in function.checks:
            for need in check.needs:
                if need not in names[: names.index(check.name)]:
                    yield Finding(exercise.stem, f"{function.name}::{check.name} needs {need!r}, not judged before it")
        for twice in sorted({check for check in names if names.count(check) > 1}):
            yield Finding(exercise.stem, f"`{function.name}` has two checks named {twice}")
    total = sum(function.points for function in exercise.functions)
    if total != exercise.points:
        yield Finding(exercise.stem, f"the points of its checks add up to {total:g}, not {exercise.points}")


def wholeness(name: str, unfinished: Sequence[str] = ()) -> Iterator[Finding]:
    """Whether all exercises are there, and all points."""
    count, points = whole(name)
    there = {exercise.number for exercise in day(name)}
    missing = [f"{number:02}" for number in range(1, count + 1) if f"{number:02}" not in there]
    total = sum(exercise.points for exercise in day(name))
    if missing:
        said = f"exercises {', '.join(missing)} are missing; {total:g} of {points:g} points are there"
        yield Finding(name, said, warning=True)
    elif total != points:
        said = f"the points add up to {total:g}, not {points:g}"
        if unfinished:
            said += f"; {' and '.join(unfinished)} must not be finished before they do"
        yield Finding(name, said, warning=bool(unfinished))
    numbers = [exercise.number for exercise in day(name)]
    for twice in sorted({number for number in numbers if numbers.count(number) > 1}):
        yield Finding(name, f"two exercises have the number {twice}")


def stub_and_reference(exercise: Exercise, name: str, root: Path) -> Iterator[Finding]:
    """Whether the stub is all to do and gives nothing away, and the reference passes."""
    reference, stub = (root / folder / name / f"{exercise.stem}.py" for folder in ("reference", "exercises"))
    for path, wanted in ((reference, "passed"), (stub, "to do")):
        if not path.is_file():
            yield Finding(exercise.stem, f"{path.relative_to(root)} is missing")
            continue
        for function in exercise.functions:
            try:
                results = graded(exercise, function, path, reference)
            except DojoError as error:
                yield Finding(exercise.stem, f"`{function.name}` cannot be graded: {error}")
                continue
            for result in results:
                if result.outcome != wanted:
                    said = f"{result.outcome}, not {wanted}" + (f": {result.happened}" if result.happened else "")
                    yield Finding(
                        exercise.stem, f"{path.parent.parent.name}: {function.name}::{result.check} is {said}"
                    )
    if reference.is_file() and stub.is_file():
        yield from leaks(exercise.stem, reference, stub)


def leaks(stem: str, reference: Path, stub: Path) -> Iterator[Finding]:
    """Lines of the solution that a student can read in the stub."""
    from graders.release.stubs import stub_of

    source, shown = reference.read_text(encoding="utf-8"), stub.read_text(encoding="utf-8")
    try:
        fresh = stub_of(source, str(reference))
    except DojoError as error:
        yield Finding(stem, str(error))
        return
    if fresh != shown:
        yield Finding(stem, "the stub is stale; run: dojo release stubs")
    visible = {line.strip() for line in shown.splitlines()}
    for number, line in solution_lines(source):
        if line in visible:
            yield Finding(stem, f"the stub shows line {number} of the solution: {line}")


def solution_lines(source: str) -> Iterator[tuple[int, str]]:
    """The lines between solution markers that would give something away."""
    from graders.release.stubs import BEGIN, END

    inside = False
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text in (BEGIN, END):
            inside = text == BEGIN
        elif inside and len(text) >= TELLING and not text.startswith("#") and not text.endswith(":"):
            yield number, text


def graded(
    exercise: Exercise, function: Function, path: Path, reference: Path, known: dict[str, Evidence] | None = None
) -> list[CheckResult]:
    """The results of one function of a file, on the virtual device; `known` keeps the reference's evidence."""
    from graders.checks import judge
    from graders.probes.loading import load
    from graders.probes.observing import observe
    from graders.probes.shared_names import put_back

    known = {} if known is None else known
    measured = path != reference and reference.is_file()
    if measured and function.name not in known:
        known[function.name] = observe(exercise, function, load(reference), "virtual", SEED)
    with put_back():
        seen = observe(exercise, function, load(path), "virtual", SEED)
    return judge(exercise, function, seen, known[function.name] if measured else seen)


def believed(exercise: Exercise, enemies: list[Enemy], name: str, root: Path) -> Iterator[Finding]:
    """Whether each wrong solution fails what it says, as what it says."""
    reference = root / "reference" / name / f"{exercise.stem}.py"
    known: dict[str, Evidence] = {}
    for enemy in enemies:
        function = next((f for f in exercise.functions if f.name == enemy.function), None)
        if function is None:
            continue
        results = graded(exercise, function, enemy.path, reference, known)
        first = next((r for r in results if r.outcome not in ("passed", "blocked")), None)
        if first is None:
            yield Finding(exercise.stem, f"wrong/{enemy.path.name} passes everything of `{function.name}`")
        elif (first.check, first.misconception, first.outcome) != (enemy.check, enemy.misconception, "failed"):
            got = f"{first.outcome} {first.check} as {first.misconception or '-'}"
            said = f"{enemy.check} as {enemy.misconception or '-'}"
            yield Finding(exercise.stem, f"wrong/{enemy.path.name} got: {got}; it says: {said}")


def misconceptions_of(
    name: str, enemies: list[Enemy] | None, elsewhere: Sequence[Enemy] = (), unfinished: bool = False
) -> Iterator[Finding]:
    """Names of mistakes that do not exist, and mistakes that nobody makes, on this day or `elsewhere`."""
    import importlib

    package = importlib.import_module(f"graders.{name}")
    for folder in package.__path__:
        for path in sorted(Path(folder).rglob("*.py")):  # an exercise is a module or a package of several
            for key, line in keys_in(path.read_text(encoding="utf-8")):
                if key not in MISCONCEPTIONS:
                    yield Finding(
                        path.relative_to(folder).as_posix(),
                        f"line {line} names a misconception {key!r} that does not exist",
                    )
    if enemies is None:
        return
    for enemy in enemies:
        if enemy.misconception is not None and enemy.misconception not in MISCONCEPTIONS:
            yield Finding(enemy.path.parent.name, f"{enemy.path.name}: no misconception {enemy.misconception!r}")
    unfinished = unfinished or any(finding.warning for finding in wholeness(name))
    for key in sorted(set(MISCONCEPTIONS) - {enemy.misconception for enemy in (*enemies, *elsewhere)}):
        yield Finding("misconceptions", f"no wrong solution makes the mistake {key!r}", warning=unfinished)
    for key, known in MISCONCEPTIONS.items():
        if not known.name.strip() or not known.why.strip():
            yield Finding("misconceptions", f"{key!r} has no name or does not say why it matters")
