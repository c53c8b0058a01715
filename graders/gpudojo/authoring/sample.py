"""Makes a sample class of submissions from the solutions of the repository."""

from __future__ import annotations

import random
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.authoring.lint import solutions
from gpudojo.model.errors import BadClass

# Shares as in a class in its first week.
SOLVED, WRONG = 0.62, 0.2  # of the exercises; the rest are still stubs
FORMS: Final = (("folder", 0.8), ("zip", 0.1), ("notebook", 0.1))
BROKEN: Final = 0.03
HOSTILE: Final = 0.01
# Not the exploits of the tests: what happens in a class that means no harm.
HARMFUL: Final = (
    "while True:\n    pass\n",
    "import os\n\nos._exit(0)\n",
    "import sys\n\nsys.exit(0)\n",
    "x = [0]\nwhile True:\n    x = x + x\n",
)


ATTACK: Final = re.compile(r"\bsleep\(|setattr\(|\bgc\.|_getframe|^torch\.[\w.]+ = ", re.M)


@dataclass(frozen=True)
class Made:
    """One submission: its name, its files and the form in which it is handed in."""

    name: str
    files: dict[str, bytes]
    form: str


@dataclass(frozen=True)
class Corpus:
    """What there is to choose from, by exercise."""

    stubs: dict[str, str]
    right: dict[str, list[str]]
    wrong: dict[str, list[str]]


def corpus(root: Path, day: str) -> Corpus:
    """The repository's exercises, references and tried solutions."""
    stubs = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / "exercises" / day).glob("*.py"))}
    tried = solutions(root / "tests" / day)
    if not stubs or not tried:
        raise BadClass(f"{root} has no exercises/{day} or no solutions in tests/{day} to make a class from")
    right = {stem: [(root / "reference" / day / f"{stem}.py").read_text(encoding="utf-8")] for stem in stubs}
    wrong: dict[str, list[str]] = {stem: [] for stem in stubs}
    for one in tried:
        # A file with an import that must stand first cannot be put below another; an attack is no honest mistake.
        if one.exercise in stubs and "from __future__" not in one.source and not ATTACK.search(one.source):
            # Who answers one function of several has the others still as stubs; the last definition counts.
            text = f"{_without_demo(stubs[one.exercise])}\n\n{one.source}"
            (wrong if one.wrong else right)[one.exercise].append(text)
    return Corpus(stubs, right, wrong)


def _without_demo(source: str) -> str:
    return source.partition('\nif __name__ == "__main__":')[0]


def sample(known: Corpus, students: int, seed: int, hostile: float = HOSTILE, broken: float = BROKEN) -> Iterator[Made]:
    """The submissions of a class, one at a time; the same seed gives the same class."""
    width = len(str(students))
    for number in range(1, students + 1):
        generator = random.Random(f"{seed} {number}")
        name = f"student-{number:0{width}}"
        files = {f"{stem}.py": _answer(known, stem, generator).encode() for stem in known.stubs}
        chance = generator.random()
        if chance < hostile:
            files[generator.choice(sorted(files))] = generator.choice(HARMFUL).encode()
        elif chance < hostile + broken:
            victim = generator.choice(sorted(files))
            files[victim] = files[victim][: len(files[victim]) // 2] + b"\n)\n"
        # A name in each submission: no two are the same, as in a real class.
        first = next(iter(files))
        files[first] = f"# {name}\n".encode() + files[first]
        form = generator.choices([form for form, _ in FORMS], [share for _, share in FORMS])[0]
        yield Made(name, files, form)


def _answer(known: Corpus, stem: str, generator: random.Random) -> str:
    chance = generator.random()
    if chance < SOLVED:
        return generator.choice(known.right[stem])
    if chance < SOLVED + WRONG and known.wrong[stem]:
        return generator.choice(known.wrong[stem])
    return known.stubs[stem]


def hand_in(made: Made, folder: Path) -> Path:
    """Write a submission as its student would have handed it in."""
    target = folder / (made.name + {"zip": ".zip", "notebook": ".ipynb"}.get(made.form, ""))
    if made.form == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in made.files.items():
                archive.writestr(zipfile.ZipInfo(f"{made.name}/{name}"), data)
    elif made.form == "notebook":
        target.write_bytes(_notebook(made))
    else:
        target.mkdir()
        for name, data in made.files.items():
            (target / name).write_bytes(data)
    return target


def _notebook(made: Made) -> bytes:
    import nbformat

    cells = [nbformat.v4.new_markdown_cell(f"# {made.name}", id="title")]  # type: ignore[no-untyped-call]
    for number, data in enumerate(made.files.values()):
        source = _without_demo(data.decode(errors="replace"))
        cells.append(nbformat.v4.new_code_cell(source, id=f"cell-{number}"))  # type: ignore[no-untyped-call]
    text: str = nbformat.writes(nbformat.v4.new_notebook(cells=cells))  # type: ignore[no-untyped-call]
    return f"{text}\n".encode()
