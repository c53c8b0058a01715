"""Proves that a day is fit for students."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpudojo.model.catalogue import day, misconceptions_of, registered, sources, whole
from gpudojo.model.errors import DojoError
from gpudojo.model.exercise import Exercise, Function
from gpudojo.release.stubs import solution_lines, stub_of

if TYPE_CHECKING:
    from gpudojo.model.evidence import Evidence
    from gpudojo.model.results import CheckResult


@dataclass(frozen=True)
class Finding:
    exercise: str
    text: str
    warning: bool = False


@dataclass
class Row:
    """What was counted for one exercise."""

    stem: str
    points: float
    functions: int
    checks: int
    enemies: int
    notes: int = 0  # what the author has still to do
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Report:
    day: str
    rows: list[Row]
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


def keys_in(source: str) -> list[tuple[str, int]]:
    """The misconception keys a module's checks name, given by position or by name."""
    tree = ast.parse(source)
    places = {"Failed": 3}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            if "misconception" in names:
                places[node.name] = names.index("misconception")
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        place = places.get(called)
        given = [keyword.value for keyword in node.keywords if keyword.arg == "misconception"]
        if place is not None and len(node.args) > place:
            given.append(node.args[place])
        for value in given:
            found += [(text, value.lineno) for text in _texts(value)]
    return found


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts an expression may come out as."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)


HEADER: Final = re.compile(r"# fails: (\w+)::(\w+) as ([\w-]+)\s*$")


@dataclass(frozen=True)
class Enemy:
    """A wrong solution, and what its first line says it must fail."""

    path: Path
    function: str
    check: str
    misconception: str | None


def enemies_of(folder: Path) -> tuple[list[Enemy], list[Finding]]:
    """The wrong solutions, and those that do not say what they fail."""
    found, unreadable = [], []
    for path in sorted(folder.glob("*/*.py")):
        first, *_ = path.read_text(encoding="utf-8").splitlines() or [""]
        match = HEADER.match(first)
        if match is None:
            unreadable.append(Finding(path.parent.name, f"{path.name} does not say on its first line what it fails"))
            continue
        found.append(Enemy(path, match[1], match[2], None if match[3] == "-" else match[3]))
    return found, unreadable


def without_enemy(exercise: Exercise, enemies: list[Enemy]) -> Iterator[Finding]:
    fought = {(enemy.function, enemy.check) for enemy in enemies}
    there = {(function.name, check.name) for function in exercise.functions for check in function.checks}
    for function, check in sorted(there - fought):
        yield Finding(exercise.stem, f"{function}::{check} has no enemy: no wrong solution fails it")
    for function, check in sorted(fought - there):
        yield Finding(exercise.stem, f"a wrong solution says it fails {function}::{check}, which is no check")


NOTE: Final = re.compile(r"\bTODO: (.*?)\s*(?:\"\"\"|\",?)?$", re.M)
LAST: Final = "__init__.py"
SPELLINGS: Final = 4  # right solutions of each function: fewer, and a check that knows only one would not be noticed


@dataclass(frozen=True)
class Note:
    path: Path
    line: int
    text: str


def notes(name: str, exercise: Exercise, root: Path) -> list[Note]:
    """The reference first, then what is declared, looked at and judged, then examples; the package itself last."""
    package = sources(name, exercise)
    places = {path.name: path for path in package}
    order = [path for word in ("functions", "probes", "checks") for path in package if path.name.startswith(word)]
    examples = [p for kind in ("right", "wrong") for p in sorted((root / "tests" / name / kind).glob(_in(exercise)))]
    paths = [root / "reference" / name / f"{exercise.stem}.py", *order, *examples]
    paths += [path for path in package if path not in paths and path.name != LAST]
    paths += [places[LAST]] if LAST in places else []
    return [note for path in paths for note in _notes_in(path)]


def _in(exercise: Exercise) -> str:
    return f"{exercise.stem}/*.py"


def _notes_in(path: Path) -> Iterator[Note]:
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    for match in NOTE.finditer(text):
        yield Note(path, text.count("\n", 0, match.start()) + 1, match[1])


def begun(found: Iterable[Note]) -> bool:
    """Whether there is more to do than to declare the exercise finished."""
    return any(note.path.name != LAST for note in found)


def next_step(exercise: Exercise, found: Sequence[Note], findings: Sequence[Finding], root: Path) -> Finding:
    """What to do next: a note, then whatever else is found, and at the very end the last note."""
    first = next((note for note in found if note.path.name != LAST), None)
    if first is None and findings:
        said = findings[0].text
    else:
        note = first or found[0]
        said = f"{_shown(note.path, root)}:{note.line}: {note.text}"
    count = f"{len(found)} note{'s' * (len(found) > 1)} left"
    return Finding(exercise.stem, f"unfinished, {count}; next: {said}", warning=True)


def _shown(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def too_few_spellings(exercise: Exercise, folder: Path) -> Iterator[Finding]:
    """Functions with fewer right solutions than it takes to notice a check that knows only one."""
    from gpudojo.grading.load import Unparsable, bindings, parse

    counts = dict.fromkeys((function.name for function in exercise.functions), 0)
    for path in sorted(folder.glob(_in(exercise))):
        try:
            bound = bindings(parse(path.read_text(encoding="utf-8"), path))
        except Unparsable as error:
            yield Finding(exercise.stem, f"right/{path.name} is no Python: {error.evidence.message}")
            continue
        for function in {name for name, _, stub in bound if not stub}:
            if function in counts:
                counts[function] += 1
    for function, count in counts.items():
        if count < SPELLINGS:
            yield Finding(exercise.stem, f"`{function}` has {count} right solutions of at least {SPELLINGS}")


SEED: Final = 8


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
    general += named_mistakes(name, enemies if has_enemies else None, bool(unfinished))
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
    row.findings += declared(exercise, misconceptions_of(name))
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


def declared(exercise: Exercise, mistakes: Container[str] = ()) -> Iterator[Finding]:
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
            if key not in names and key not in mistakes:
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


def graded(
    exercise: Exercise, function: Function, path: Path, reference: Path, known: dict[str, Evidence] | None = None
) -> list[CheckResult]:
    """The results of one function of a file, on the virtual device; `known` keeps the reference's evidence."""
    from gpudojo.grading.call import put_back
    from gpudojo.grading.judge import judge
    from gpudojo.grading.load import load
    from gpudojo.grading.observe import observe

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


def named_mistakes(name: str, enemies: list[Enemy] | None, unfinished: bool = False) -> Iterator[Finding]:
    """Misconceptions that the day does not declare, and those that no wrong solution makes."""
    known = misconceptions_of(name)
    folder = registered()[name].folder
    for path in sorted(folder.rglob("*.py")):
        for key, line in keys_in(path.read_text(encoding="utf-8")):
            if key not in known:
                said = f"line {line} names a misconception {key!r} that {name}'s misconceptions.toml does not have"
                yield Finding(path.relative_to(folder).as_posix(), said)
    if enemies is None:
        return
    for enemy in enemies:
        if enemy.misconception is not None and enemy.misconception not in known:
            yield Finding(enemy.path.parent.name, f"{enemy.path.name}: no misconception {enemy.misconception!r}")
    unfinished = unfinished or any(finding.warning for finding in wholeness(name))
    for key in sorted(set(known) - {enemy.misconception for enemy in enemies}):
        yield Finding("misconceptions", f"no wrong solution makes the mistake {key!r}", warning=unfinished)
    for key, mistake in known.items():
        if not mistake.name.strip() or not mistake.why.strip():
            yield Finding("misconceptions", f"{key!r} has no name or does not say why it matters")
