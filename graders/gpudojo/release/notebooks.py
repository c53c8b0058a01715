"""Makes notebooks from reference files: one for each exercise, and one of the whole day."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from gpudojo.model import catalogue
from gpudojo.model.lessons import lesson_path, lesson_text
from gpudojo.release.sections import Section, Task, split_into_sections, task_text, title_text
from gpudojo.release.wheel import write_files
from gpudojo.submissions.opening_cell import opening_code

FOLDER: Final = "notebooks"
LONGEST_ID: Final = 64  # of a cell, by the format of notebooks
METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
EVERYTHING: Final = "All tasks at once, and your points. Save the notebook before you hand it in."

Cell = dict[str, Any]


def notebooks_of_day(
    root: Path, day: str, package: str | None = None, left_out: Collection[str] = ()
) -> dict[str, bytes]:
    """Return every notebook of a day, by its path in the repository.

    `root` is the repository, `package` what pip installs where there is no wheel. Exercises with
    the stems `left_out` are in none of them. Raises BadMarkers
    for a solution whose marks do not match, BadDay where the day cannot be imported, and OSError.
    """
    sections_by_stem = {}
    references = root / "reference" / day
    for path in sorted(references.glob("*.py")):
        if path.stem not in left_out:
            sections_by_stem[path.stem] = split_into_sections(path)
    notebooks = {}
    for stem, sections in sections_by_stem.items():
        cells = _cells_of_exercise(day, stem, sections, package)
        path_of_notebook = f"{FOLDER}/{day}/{stem}.ipynb"
        notebooks[path_of_notebook] = _encode_notebook(cells)
    if sections_by_stem:
        cells = _cells_of_day(day, sections_by_stem, package)
        path_of_notebook = f"{FOLDER}/{day}/{day}.ipynb"
        notebooks[path_of_notebook] = _encode_notebook(cells)
    return notebooks


def write_notebooks(folder: Path, notebooks: dict[str, bytes]) -> list[Path]:
    """Write the notebooks below a folder, and return the paths of those that changed.

    `notebooks` are the files by path. One that is there already with the same bytes stays. Raises
    OSError.
    """
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
    """Yield the cells of an exercise's own notebook.

    The first of the sections is its title. `package` is what pip installs. Raises BadDay where the
    exercise cannot be imported, and OSError.
    """
    prefix = _prefix_of(stem)
    title, *others = sections
    text = title_text(title.text, stem)
    yield _markdown_cell(f"{prefix}-title", text)
    yield _code_cell(f"{prefix}-opening", opening_code(package))
    yield from _cells_below_title(day, stem, others)


def _cells_of_day(
    day: str, sections_by_stem: dict[str, list[Section]], package: str | None
) -> Iterator[Cell]:
    """Yield the cells of the notebook with all exercises, after a table of them.

    `package` is what pip installs. The last cell checks everything. Raises BadDay where the day
    cannot be imported, and OSError.
    """
    docstrings = {}
    for stem, sections in sections_by_stem.items():
        docstrings[stem] = sections[0].text
    table = _table_of_exercises(day, docstrings)
    yield _markdown_cell(f"{day}-title", table)
    yield _code_cell(f"{day}-opening", opening_code(package))
    for stem, (title, *others) in sections_by_stem.items():
        prefix = _prefix_of(stem)
        text = title_text(title.text, stem, level=2)
        yield _markdown_cell(f"{prefix}-title", text)
        yield from _cells_below_title(day, stem, others)
    yield _markdown_cell(f"{day}-everything-text", EVERYTHING)
    yield _code_cell(f"{day}-everything", "check()")


def _table_of_exercises(day: str, docstrings: dict[str, str]) -> str:
    """Return the title of a day, and a table of its exercises with their points, in Markdown.

    `docstrings` are those of the exercises' files, by stem; the first line is the title. Raises
    BadDay where the day cannot be imported.
    """
    points = {}
    for exercise in catalogue.exercises_of(day):
        points[exercise.stem] = exercise.points
    title_of_day = catalogue.day_title(day)
    lines = [f"# {title_of_day}", "", "| exercise | points |", "| --- | ---: |"]
    for stem, docstring in docstrings.items():
        number = _prefix_of(stem)
        first_line = docstring.splitlines()[0]
        title = first_line.removesuffix(".")
        worth = points.get(stem, "")
        lines.append(f"| {number} {title} | {worth} |")
    return "\n".join(lines)


def _cells_below_title(day: str, stem: str, sections: Iterable[Section]) -> Iterator[Cell]:
    """Yield the lesson of an exercise if it has one, its tasks and the code around them.

    `sections` are those below the title. Raises OSError where the lesson cannot be read.
    """
    prefix = _prefix_of(stem)
    lesson = lesson_path(day, stem)
    if lesson:
        source = lesson.read_text(encoding="utf-8")
        text = lesson_text(source, folded=True)
        _, _, below_title = text.partition("\n")
        with_lower_headings = re.sub(r"(?m)^## ", "### ", below_title)
        yield _markdown_cell(f"{prefix}-lesson", with_lower_headings)
    given = 0  # how many sections of given code there were
    for section in sections:
        if isinstance(section, Task):
            yield from _cells_of_task(prefix, section)
        elif section.demo:
            yield _code_cell(f"{prefix}-demo", section.code)
        else:
            given += 1
            yield _code_cell(f"{prefix}-given-{given}", section.code)


def _cells_of_task(prefix: str, task: Task) -> Iterator[Cell]:
    """Yield the contract of a task, its stub, and the cell that checks it.

    The ids of the cells begin with `prefix`.
    """
    name = f"{prefix}-{task.name}"
    text = task_text(task)
    yield _markdown_cell(f"{name}-text", text)
    yield _code_cell(name, task.code)
    yield _code_cell(f"{name}-check", f"check({task.name})")


def _prefix_of(stem: str) -> str:
    """Return the number of an exercise; its whole name where it has none."""
    number = stem.partition("_")[0]
    if not number.isdecimal():
        return stem
    return number


def _markdown_cell(name: str, text: str) -> Cell:
    """Return a cell of text; its name is its id, if it is not too long."""
    return {
        "cell_type": "markdown",
        "id": name[:LONGEST_ID],
        "metadata": {},
        "source": _lines_of_cell(text),
    }


def _code_cell(name: str, text: str) -> Cell:
    """Return a cell of code that was not run; its name is its id, if it is not too long."""
    return {
        "cell_type": "code",
        "id": name[:LONGEST_ID],
        "metadata": {},
        "source": _lines_of_cell(text),
        "execution_count": None,
        "outputs": [],
    }


def _lines_of_cell(text: str) -> list[str]:
    """Return the lines of a text, as a notebook has them: with their ends."""
    return text.strip("\n").splitlines(keepends=True)


def _encode_notebook(cells: Iterator[Cell]) -> bytes:
    """Return a notebook of these cells; the same cells have the same bytes."""
    content = {
        "cells": list(cells),
        "metadata": METADATA,
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True)
    return f"{text}\n".encode()
