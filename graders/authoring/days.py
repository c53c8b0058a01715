"""Of which files is a new day made? A package that says how much there will be, and its tests."""

from __future__ import annotations

from graders.authoring.names import refuse_day, refuse_title
from graders.authoring.skeletons import filled
from graders.authoring.surroundings import Surroundings


def day_files(
    name: str, known: Surroundings, title: str | None = None, exercises: int = 12, points: int = 100
) -> dict[str, str | None]:
    """Their texts, by path; None is a folder."""
    refuse_day(name, known)
    number = name.removeprefix("day")
    title = f"the exercises of day {number}" if title is None else title
    refuse_title(title)
    return {
        f"graders/{name}/__init__.py": filled("day", number=number, title=title, exercises=exercises, points=points),
        f"reference/{name}": None,
        f"exercises/{name}": None,
        f"tests/{name}/__init__.py": "",
        f"tests/{name}/test_solutions.py": filled("test_solutions", day=name),
        f"tests/{name}/right": None,
        f"tests/{name}/wrong": None,
    }
