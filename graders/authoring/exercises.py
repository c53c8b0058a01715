"""Of which files is a new exercise made? A reference to fill in, what declares, looks and judges, first examples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from graders.authoring.names import refuse_exercise, refuse_functions, refuse_title
from graders.authoring.skeletons import filled
from graders.authoring.surroundings import Surroundings
from graders.errors import BadName, CannotBegin
from graders.release.stubs import stub_of

WIDTH: Final = 120
RUNS: Final = 0.5  # what it is worth that a function runs at all


@dataclass(frozen=True)
class Plan:
    """What the author wants."""

    day: str
    name: str
    functions: tuple[str, ...] = ()  # none: one, which is called as the exercise is
    points: int = 5
    title: str | None = None


def exercise_files(plan: Plan, known: Surroundings) -> dict[str, str | None]:
    """The texts, by path; or a sentence why there cannot be such an exercise."""
    stem = f"{known.next_number(plan.day):02}_{plan.name}"
    functions = plan.functions or (plan.name,)
    title = plan.name.replace("_", " ").capitalize() if plan.title is None else plan.title.strip().rstrip(".")
    refuse_exercise(plan.name, plan.day, stem, known)
    refuse_functions(functions, known)
    refuse_title(title)
    words = {"day": plan.day, "name": plan.name, "stem": stem, "number": stem[:2], "title": title}
    reference = _reference(functions, words)
    grader = f"graders/{plan.day}/{plan.name}"
    files = {
        f"reference/{plan.day}/{stem}.py": reference,
        f"exercises/{plan.day}/{stem}.py": stub_of(reference),
        f"{grader}/functions.py": filled("functions", **words, points=plan.points)
        + "".join(filled("function", function=function) for function in functions),
    }
    modules = []
    for function, points in zip(functions, shares(plan.points, len(functions)), strict=True):
        # One function has all to itself; of several, each has modules of its own, in which no two checks clash.
        suffix = "" if len(functions) == 1 else f"_{function}"
        worth = {"runs": f"{min(RUNS, points / 2):g}", "rest": f"{points - min(RUNS, points / 2):g}"}
        for kind in ("probes", "checks"):
            files[f"{grader}/{kind}{suffix}.py"] = filled(kind, **words, **worth, function=function)
            modules.append(f"{kind}{suffix}")
        examples = f"tests/{plan.day}"
        files[f"{examples}/right/{stem}/{function}_plain.py"] = filled("right", function=function)
        for mistake in ("raises", "nothing"):
            text = filled(f"wrong_{mistake}", function=function)
            files[f"{examples}/wrong/{stem}/{function}_{mistake}.py"] = text
    files[f"{grader}/__init__.py"] = _package(modules, words)
    _refuse_clashes(files, functions)
    return dict(files)


def shares(points: int, count: int) -> list[float]:
    """The points of each of some functions, in quarters, the last one's a little more."""
    each = 4 * points // count / 4
    if not each:
        raise CannotBegin(f"{count} functions need more points than {points}: a quarter each, at least")
    return [each] * (count - 1) + [points - each * (count - 1)]


def _reference(functions: Iterable[str], words: dict[str, str]) -> str:
    tasks = "".join(filled("task", function=function) for function in functions)
    demos = "".join(filled("demo_of_task", function=function) for function in functions)
    return filled("reference", **words) + tasks + filled("demo") + demos


def _package(modules: list[str], words: dict[str, str]) -> str:
    home = f"graders.{words['day']}.{words['name']}"
    exported = [f'"{name}"' for name in sorted([*modules, "exercise"], key=_natural)]
    imported = _list(f"from {home} import ", sorted(modules, key=_natural), "", "", "()")
    return (
        filled("package", **words)
        + f"{imported}\nfrom {home}.functions import exercise\n\n"
        + f"{_list('__all__ = ', exported, '[', ']', '[]')}\n"
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """An order in which 10 comes after 2, as ruff has it."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _list(before: str, names: list[str], opening: str, closing: str, brackets: str) -> str:
    """On one line where it fits, else one name a line."""
    line = f"{before}{opening}{', '.join(names)}{closing}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{before}{brackets[0]}", *(f"    {name}," for name in names), brackets[1]])


def _refuse_clashes(files: dict[str, str], functions: tuple[str, ...]) -> None:
    """A function called as something that its own skeleton has: `torch`, `sprites`, `exercise`."""
    for text in files.values():
        bound = list(_bound(ast.parse(text)))
        for function in functions:
            if bound.count(function) > 1:
                raise BadName("a function", function, "the files around it need that name for something else")


def _bound(tree: ast.Module) -> Iterator[str]:
    """Every name that is bound anywhere in a file, each time that it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
