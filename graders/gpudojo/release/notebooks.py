"""Makes notebooks from reference files: the stub, cell by cell, each task below its text and above its check.

The bytes depend on the reference alone: cell ids are made from names, and there are no outputs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpudojo.model import catalogue, lessons
from gpudojo.release.stubs import Section, Task, sections, task_text, title_text
from gpudojo.release.wheel import write_files

FOLDER: Final = "notebooks"
METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Run before everything else, by Jupyter, by Colab, and by pytest and `dojo grade`, where nothing is missing.
OPENING: Final = Path(__file__).with_name("opening_cell.txt").read_text(encoding="utf-8")
EVERYTHING: Final = "All tasks at once, and your points. Save the notebook before you hand it in."
Cell = dict[str, Any]


def of_day(root: Path, day: str, package: str | None = None) -> dict[str, bytes]:
    """Every notebook of a day, by its path in the repository; `package` is what pip installs where no wheel is."""
    made = {path.stem: sections(path) for path in sorted((root / "reference" / day).glob("*.py"))}
    names = {stem: f"{FOLDER}/{day}/{stem}.ipynb" for stem in made}
    found = {names[stem]: _notebook(_exercise(day, stem, found, package)) for stem, found in made.items()}
    if made:
        found[f"{FOLDER}/{day}/{day}.ipynb"] = _notebook(_whole(day, made, package))
    return found


def write(folder: Path, made: dict[str, bytes]) -> list[Path]:
    """Write the notebooks below a folder; gives those that changed."""
    there = {name: path.read_bytes() for name in made if (path := folder / name).is_file()}
    changed = {name: data for name, data in made.items() if there.get(name) != data}
    write_files(folder, changed)
    return [folder / name for name in changed]


def _exercise(day: str, stem: str, found: list[Section], package: str | None) -> Iterator[Cell]:
    prefix = _prefix(stem)
    title, *rest = found
    yield _markdown(f"{prefix}-title", title_text(title.text, stem))
    yield _code(f"{prefix}-opening", OPENING.format(package=package))
    yield from _body(day, stem, rest)


def _whole(day: str, made: dict[str, list[Section]], package: str | None) -> Iterator[Cell]:
    lines = [f"# {catalogue.title(day)}", "", "| exercise | points |", "| --- | ---: |"]
    points = {exercise.stem: exercise.points for exercise in catalogue.day(day)}
    for stem, (title, *_) in made.items():
        heading = title.text.splitlines()[0].removesuffix(".")
        lines.append(f"| {_prefix(stem)} {heading} | {points.get(stem, '')} |")
    yield _markdown(f"{day}-title", "\n".join(lines))
    yield _code(f"{day}-opening", OPENING.format(package=package))
    for stem, (title, *rest) in made.items():
        yield _markdown(f"{_prefix(stem)}-title", title_text(title.text, stem, level=2))
        yield from _body(day, stem, rest)
    yield _markdown(f"{day}-everything-text", EVERYTHING)
    yield _code(f"{day}-everything", "check()")


def _body(day: str, stem: str, rest: list[Section]) -> Iterator[Cell]:
    prefix, given = _prefix(stem), 0
    if path := lessons.lesson_path(day, stem):
        _, _, text = lessons.shown(path.read_text(encoding="utf-8"), folded=True).partition("\n")  # the title is there
        yield _markdown(f"{prefix}-lesson", re.sub(r"(?m)^## ", "### ", text))
    for section in rest:
        if isinstance(section, Task):
            yield _markdown(f"{prefix}-{section.name}-text", task_text(section))
            yield _code(f"{prefix}-{section.name}", section.code)
            yield _code(f"{prefix}-{section.name}-check", f"check({section.name})")
        elif section.demo:
            yield _code(f"{prefix}-demo", section.code)
        else:
            given += 1
            yield _code(f"{prefix}-given-{given}", section.code)


def _prefix(stem: str) -> str:
    number = stem.partition("_")[0]
    return number if number.isdecimal() else stem


def _markdown(name: str, text: str) -> Cell:
    source = text.strip("\n").splitlines(keepends=True)
    return {"cell_type": "markdown", "id": name[:64], "metadata": {}, "source": source}


def _code(name: str, text: str) -> Cell:
    return _markdown(name, text) | {"cell_type": "code", "execution_count": None, "outputs": []}


def _notebook(cells: Iterator[Cell]) -> bytes:
    content = {"cells": list(cells), "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()
