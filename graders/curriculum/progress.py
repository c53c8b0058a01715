"""What is still to do in an exercise that is being written? Its notes, `TODO:` and a sentence, in the order of work.

An exercise with such a note is unfinished: what `dojo lint` finds in it are warnings. The last note, in the
package's `__init__.py`, goes when nothing else is found, and from then on the exercise counts as finished.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graders.curriculum.catalogue import sources
from graders.curriculum.exercise import Exercise
from graders.curriculum.report import Finding

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
    from graders.probes.loading import Unparsable, bindings, parse

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
