"""Makes notebooks from reference files: one for each exercise, and one of the whole day."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from gpudojo.model import catalogue
from gpudojo.model.lessons import lesson_path, lesson_text
from gpudojo.release.sections import Section, Task, split_into_sections, task_text, title_text
from gpudojo.release.wheel import write_files

FOLDER: Final = "notebooks"
METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Run before everything else: by Jupyter, by Colab, and by pytest and `dojo grade`, where nothing
# is missing.
OPENING_CELL: Final = Path(__file__).with_name("opening_cell.txt")
EVERYTHING: Final = "All tasks at once, and your points. Save the notebook before you hand it in."

Cell = dict[str, Any]


def notebooks_of_day(root: Path, day: str, package: str | None = None) -> dict[str, bytes]:
    """Return every notebook of a day, by its path in the repository.

    `package` is what pip installs where there is no wheel. Raises BadMarkers.
    """
    sections_by_stem = {}
    for path in sorted((root / "reference" / day).glob("*.py")):
        sections_by_stem[path.stem] = split_into_sections(path)
    notebooks = {}
    for stem, sections in sections_by_stem.items():
        cells = _cells_of_exercise(day, stem, sections, package)
        notebooks[f"{FOLDER}/{day}/{stem}.ipynb"] = _encode(cells)
    if sections_by_stem:
        cells = _cells_of_day(day, sections_by_stem, package)
        notebooks[f"{FOLDER}/{day}/{day}.ipynb"] = _encode(cells)
    return notebooks


def write_notebooks(folder: Path, notebooks: dict[str, bytes]) -> list[Path]:
    """Write the notebooks below a folder, and return those that changed."""
    changed = {}
    for name, data in notebooks.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            changed[name] = data
    write_files(folder, changed)
    return [folder / name for name in changed]


def _cells_of_exercise(
    day: str, stem: str, sections: list[Section], package: str | None
) -> Iterator[Cell]:
    prefix = _prefix_of(stem)
    title, *others = sections
    yield _markdown_cell(f"{prefix}-title", title_text(title.text, stem))
    yield _code_cell(f"{prefix}-opening", _opening(package))
    yield from _cells_below_title(day, stem, others)


def _cells_of_day(
    day: str, sections_by_stem: dict[str, list[Section]], package: str | None
) -> Iterator[Cell]:
    points = {exercise.stem: exercise.points for exercise in catalogue.exercises_of(day)}
    lines = [f"# {catalogue.day_title(day)}", "", "| exercise | points |", "| --- | ---: |"]
    for stem, (title, *_) in sections_by_stem.items():
        heading = title.text.splitlines()[0].removesuffix(".")
        lines.append(f"| {_prefix_of(stem)} {heading} | {points.get(stem, '')} |")
    yield _markdown_cell(f"{day}-title", "\n".join(lines))
    yield _code_cell(f"{day}-opening", _opening(package))
    for stem, (title, *others) in sections_by_stem.items():
        text = title_text(title.text, stem, level=2)
        yield _markdown_cell(f"{_prefix_of(stem)}-title", text)
        yield from _cells_below_title(day, stem, others)
    yield _markdown_cell(f"{day}-everything-text", EVERYTHING)
    yield _code_cell(f"{day}-everything", "check()")


def _cells_below_title(day: str, stem: str, sections: Iterable[Section]) -> Iterator[Cell]:
    prefix = _prefix_of(stem)
    lesson = lesson_path(day, stem)
    if lesson:
        text = lesson_text(lesson.read_text(encoding="utf-8"), folded=True)
        below_title = text.partition("\n")[2]
        yield _markdown_cell(f"{prefix}-lesson", re.sub(r"(?m)^## ", "### ", below_title))
    given = 0
    for section in sections:
        if isinstance(section, Task):
            yield _markdown_cell(f"{prefix}-{section.name}-text", task_text(section))
            yield _code_cell(f"{prefix}-{section.name}", section.code)
            yield _code_cell(f"{prefix}-{section.name}-check", f"check({section.name})")
        elif section.demo:
            yield _code_cell(f"{prefix}-demo", section.code)
        else:
            given += 1
            yield _code_cell(f"{prefix}-given-{given}", section.code)


def _opening(package: str | None) -> str:
    return OPENING_CELL.read_text(encoding="utf-8").format(package=package)


def _prefix_of(stem: str) -> str:
    """Return the number of an exercise; its whole name where it has none."""
    number = stem.partition("_")[0]
    return number if number.isdecimal() else stem


def _markdown_cell(name: str, text: str) -> Cell:
    source = text.strip("\n").splitlines(keepends=True)
    return {"cell_type": "markdown", "id": name[:64], "metadata": {}, "source": source}


def _code_cell(name: str, text: str) -> Cell:
    cell = _markdown_cell(name, text)
    return cell | {"cell_type": "code", "execution_count": None, "outputs": []}


def _encode(cells: Iterator[Cell]) -> bytes:
    content = {"cells": list(cells), "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True)
    return f"{text}\n".encode()
