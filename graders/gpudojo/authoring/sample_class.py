"""Makes a sample class of submissions from the right and wrong solutions of a repository."""

from __future__ import annotations

import random
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.authoring.kept_solutions import Solution, kept_solutions, reference_path
from gpudojo.model.errors import BadClass

# Shares as in a class in its first week.
SHARE_SOLVED: Final = 0.62  # of the exercises
SHARE_WRONG: Final = 0.2  # of the exercises; the rest are still stubs
SHARES_OF_FORMS: Final = {"folder": 0.8, "zip": 0.1, "notebook": 0.1}
SHARE_BROKEN: Final = 0.03
SHARE_HOSTILE: Final = 0.01
# Not the exploits of the tests: what happens in a class that means no harm.
HARMFUL: Final = (
    "while True:\n    pass\n",
    "import os\n\nos._exit(0)\n",
    "import sys\n\nsys.exit(0)\n",
    "x = [0]\nwhile True:\n    x = x + x\n",
)
ATTACK: Final = re.compile(r"\bsleep\(|setattr\(|\bgc\.|_getframe|^torch\.[\w.]+ = ", re.M)
ENDINGS: Final = {"folder": "", "zip": ".zip", "notebook": ".ipynb"}


@dataclass(frozen=True)
class SampleSubmission:
    """One submission: its name, its files and the form in which it is handed in."""

    name: str
    files: dict[str, bytes]
    form: str  # one of ENDINGS


@dataclass(frozen=True)
class Corpus:
    """What there is to choose from, by exercise."""

    stubs: dict[str, str]
    right: dict[str, list[str]]
    wrong: dict[str, list[str]]


def read_corpus(root: Path, day: str) -> Corpus:
    """Read the repository's stubs, references and kept solutions of a day.

    Raises BadClass where there are none to make a class from, and OSError where a file cannot be
    read.
    """
    stubs = {}
    exercises = root / "exercises" / day
    for path in sorted(exercises.glob("*.py")):
        stubs[path.stem] = path.read_text(encoding="utf-8")
    solutions = kept_solutions(root / "tests" / day)
    if not stubs or not solutions:
        raise BadClass(
            f"{root} has no exercises/{day} or no solutions in tests/{day} to make a class from"
        )
    right = {}
    wrong: dict[str, list[str]] = {}
    for stem in stubs:
        reference = reference_path(root, day, stem)
        right[stem] = [reference.read_text(encoding="utf-8")]
        wrong[stem] = []
    for solution in solutions:
        stem = solution.exercise
        if stem not in stubs or not _fits_below_stub(solution):
            continue
        # Who answers one function of several has the others still as stubs; the last definition
        # counts.
        stub = _without_demo(stubs[stem])
        text = f"{stub}\n\n{solution.source}"
        if solution.wrong:
            wrong[stem].append(text)
        else:
            right[stem].append(text)
    return Corpus(stubs, right, wrong)


def _fits_below_stub(solution: Solution) -> bool:
    """True for a solution that can stand below a stub, and is no attack.

    An import from `__future__` must stand first; an attack is no honest mistake.
    """
    source = solution.source
    return "from __future__" not in source and not ATTACK.search(source)


def _without_demo(source: str) -> str:
    """The source of a file up to where it shows what it does as a script."""
    return source.partition('\nif __name__ == "__main__":')[0]


def sample_submissions(
    corpus: Corpus,
    students: int,
    seed: int,
    hostile: float = SHARE_HOSTILE,
    broken: float = SHARE_BROKEN,
) -> Iterator[SampleSubmission]:
    """Yield the submissions of a class, one at a time; the same seed gives the same class.

    `hostile` and `broken` are shares of the submissions: those with a file that does harm, and with
    a file that is not Python.
    """
    width = len(str(students))
    for number in range(1, students + 1):
        generator = random.Random(f"{seed} {number}")
        name = f"student-{number:0{width}}"
        files = {}
        for stem in corpus.stubs:
            answer = _choose_answer(corpus, stem, generator)
            files[f"{stem}.py"] = answer.encode()
        chance = generator.random()
        if chance < hostile:
            harmful = generator.choice(HARMFUL)
            victim = generator.choice(sorted(files))
            files[victim] = harmful.encode()
        elif chance < hostile + broken:
            victim = generator.choice(sorted(files))
            text = files[victim]
            half = len(text) // 2
            files[victim] = text[:half] + b"\n)\n"
        # A name in each submission: no two are the same, as in a real class.
        first = next(iter(files))
        files[first] = f"# {name}\n".encode() + files[first]
        forms = list(SHARES_OF_FORMS)
        shares = list(SHARES_OF_FORMS.values())
        (form,) = generator.choices(forms, shares)
        yield SampleSubmission(name, files, form)


def _choose_answer(corpus: Corpus, stem: str, generator: random.Random) -> str:
    """Draw a right solution, a wrong one or the stub of an exercise, by their shares."""
    chance = generator.random()
    if chance < SHARE_SOLVED:
        return generator.choice(corpus.right[stem])
    wrong = corpus.wrong[stem]
    if wrong and chance < SHARE_SOLVED + SHARE_WRONG:
        return generator.choice(wrong)
    return corpus.stubs[stem]


def hand_in(submission: SampleSubmission, folder: Path) -> Path:
    """Write a submission as its student would have handed it in; returns its path.

    Raises OSError where it cannot be written.
    """
    ending = ENDINGS.get(submission.form, "")
    target = folder / f"{submission.name}{ending}"
    if submission.form == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in submission.files.items():
                member = zipfile.ZipInfo(f"{submission.name}/{name}")
                archive.writestr(member, data)
    elif submission.form == "notebook":
        target.write_bytes(_encode_notebook(submission))
    else:
        target.mkdir()
        for name, data in submission.files.items():
            (target / name).write_bytes(data)
    return target


def _encode_notebook(submission: SampleSubmission) -> bytes:
    """A notebook with a cell for each file, as bytes."""
    import nbformat

    title = nbformat.v4.new_markdown_cell(f"# {submission.name}", id="title")  # type: ignore[no-untyped-call]
    cells = [title]
    for number, data in enumerate(submission.files.values()):
        text_of_file = data.decode(errors="replace")
        source = _without_demo(text_of_file)
        cell = nbformat.v4.new_code_cell(source, id=f"cell-{number}")  # type: ignore[no-untyped-call]
        cells.append(cell)
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    text: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    return f"{text}\n".encode()
