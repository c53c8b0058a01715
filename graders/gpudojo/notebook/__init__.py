"""How does one check work in a notebook? `check(train_epoch)` in a cell shows what came of it, and why.

The function is the one the session holds, as it is now; nothing is read back from a file.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpudojo.grading.references import PUBLIC_SEEDS

if TYPE_CHECKING:
    from gpudojo.model.exercise import Exercise, Function
    from gpudojo.notebook.views import Checked, Report


SEED: Final = PUBLIC_SEEDS[0]
SECONDS: Final = 60.0
CHARACTERS: Final = 20_000  # of what student code prints: more than that, a notebook had better not keep
Task = tuple["Exercise", "Function"]


def check(
    *things: Any, hints: int | None = None, seed: int = SEED, bench: str = "auto", seconds: float = SECONDS
) -> None:
    """Check functions of this notebook, `check(train_epoch)`, or everything it defines, `check()`.

    `hints=2` shows one hint more. Each function may take `seconds`; interrupting the cell ends the check.
    """
    namespace = sys._getframe(1).f_globals
    if namespace.get("__name__") != "__main__":
        return  # pytest or `dojo grade` is running the cells to see what they define, and checks them itself
    show(look(*things, namespace=namespace, hints=hints, seed=seed, bench=bench, seconds=seconds))


def look(
    *things: Any,
    namespace: dict[str, Any],
    hints: int | None = None,
    seed: int = SEED,
    bench: str = "auto",
    seconds: float = SECONDS,
) -> Report:
    """What `check` shows, as an object."""
    from virtual_cuda import choose_device, device_count
    from virtual_cuda.errors import NoSuchDevice

    from gpudojo.grading.references import known_seeds
    from gpudojo.model.errors import NoSuchSeed
    from gpudojo.notebook.session import NOWHERE
    from gpudojo.notebook.views import STOPPED, Report

    if hints is not None and (isinstance(hints, bool) or not isinstance(hints, int)):
        return Report(said=(f"hints is how many to show, as in hints=2, and not {type(hints).__name__} objects.",))
    if bench not in ("auto", "virtual", "cpu", "cuda", "mps") or (bench in ("cuda", "mps") and not device_count(bench)):
        return Report(said=(f"{NoSuchDevice(bench)}.",))
    tasks = _tasks()
    said: list[str] = []
    wanted: list[tuple[str, Any]] = []
    for thing in things:
        name = _name(thing, namespace, tasks)
        if isinstance(thing, str) and name in namespace:
            thing = namespace[name]
        if name is None:
            said.append(_refusal(thing, tasks))
        elif isinstance(thing, str):
            said.append(f"`{name}` is not defined here yet: run its cell first.")
        else:
            wanted.append((name, thing))
    if not things:
        wanted = [(name, namespace[name]) for name in tasks if namespace.get(name) is not None]
        if not wanted:
            said.append("Nothing to check yet: run the cells above first, from the top.")
    found: list[Checked] = []
    for exercise in {tasks[name][0].stem: tasks[name][0] for name, _ in wanted}.values():
        seeds = known_seeds(Path.cwd() / NOWHERE, exercise)
        if seeds is not None and seed not in seeds:
            return Report(said=(f"{NoSuchSeed(seed, seeds)}.",))
    kind, _ = choose_device(bench)
    count = 1 if hints is None else hints
    try:
        for name, thing in wanted:
            found.append(_checked(name, thing, namespace, tasks[name], count, seed, kind, seconds))
    except KeyboardInterrupt:
        said.append(STOPPED.format(name=wanted[len(found)][0]))
    if things:
        return Report(tuple(found), said=tuple(said))
    return Report(table=_table(found, tasks) if found else None, said=tuple(said))


def show(report: Report) -> None:
    """As rich as this place allows."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        from IPython.display import display

        display(report)  # type: ignore[no-untyped-call]
        return
    text = repr(report)
    try:
        print(text)
    except UnicodeEncodeError:  # a console that knows few characters
        encoding = sys.stdout.encoding or "ascii"
        print(text.encode(encoding, "replace").decode(encoding))


def _tasks() -> dict[str, Task]:
    from gpudojo.model.catalogue import every_exercise

    return {f.name: (exercise, f) for _, exercise in every_exercise() for f in exercise.functions}


def _name(thing: Any, namespace: dict[str, Any], tasks: dict[str, Task]) -> str | None:
    """The task that an object stands for: by the name it has here, or by the name it gave itself."""
    if isinstance(thing, str):
        return thing if thing in tasks else None
    here = next((name for name in tasks if thing is not None and namespace.get(name) is thing), None)
    own = getattr(thing, "__name__", None)
    return here or (own if callable(thing) and isinstance(own, str) and own in tasks else None)


def _refusal(thing: Any, tasks: dict[str, Task]) -> str:
    """Why there is nothing to check."""
    own = thing if isinstance(thing, str) else getattr(thing, "__name__", None)
    if isinstance(own, str) and (isinstance(thing, str) or callable(thing)):
        near = difflib.get_close_matches(own, tasks, 1, 0.6)
        meant = f"; is `{near[0]}` meant?" if near else ", which are " + ", ".join(f"`{name}`" for name in tasks)
        return f"`{own[:80]}` is none of the tasks{meant}" + ("" if near else ".")
    kind = "None" if thing is None else f"an object of the class {type(thing).__name__}"
    return (
        f"check was given {kind}. Give it a function itself: check(train_epoch), with its name alone and no call; "
        "or nothing, for everything that is defined."
    )


def _checked(
    name: str, thing: Any, namespace: dict[str, Any], task: Task, hints: int, seed: int, kind: str, seconds: float
) -> Checked:
    import torch

    from gpudojo.grading import load as cells
    from gpudojo.grading.engine import FileGrader
    from gpudojo.grading.limits import Limits, bounded_output
    from gpudojo.notebook.session import definitions, live
    from gpudojo.notebook.views import checked, moves

    exercise, function = task
    student = live(name, thing)
    submission = student.submission(namespace)
    cells.leave(student.file, definitions(student, namespace))
    grader = FileGrader(submission.path, kind, seed, submission, watching=True)
    state = torch.get_rng_state()  # checking a function does not change what the next cell draws
    try:
        with bounded_output(CHARACTERS):
            results = grader.results(exercise, function, Limits(seconds))
    finally:
        torch.set_rng_state(state)
    pair = grader.pairs.get(function.name)
    if pair is None:  # it was not run: for want of a reference, say
        return checked(student, exercise, function, results, hints)
    return checked(student, exercise, function, results, hints, moves(pair.yours, student), pair.timelines())


def _table(found: Sequence[Checked], tasks: dict[str, Task]) -> Any:
    from gpudojo.model.results import Outcome
    from gpudojo.notebook.views import Row, Table

    by_name = {checked.name: checked for checked in found}
    rows = []
    for exercise in dict.fromkeys(checked.exercise for checked in found):
        functions = [function for each, function in tasks.values() if each.stem == exercise]
        there = [by_name[function.name] for function in functions if function.name in by_name]
        counts: dict[str, int] = {}
        for checked in there:
            for result in checked.results:
                counts[result.outcome] = counts.get(result.outcome, 0) + 1
        if absent := [function for function in functions if function.name not in by_name]:
            counts["not run"] = sum(len(function.checks) for function in absent)
        points = sum(checked.points for checked in there)
        rows.append(Row(exercise, points, sum(function.points for function in functions), _state(counts)))
    waiting = [c.name for o in (Outcome.FAILED, Outcome.TODO) for c in found if o in c.outcomes]
    return Table(tuple(rows), f"check({waiting[0]})" if waiting else "")


def _state(counts: dict[str, int]) -> str:
    if set(counts) == {"passed"}:
        return "done"
    if set(counts) == {"to do"}:
        return "to do"
    order = ("failed", "error", "blocked", "to do", "not run")
    return ", ".join(f"{counts[name]} {name}" for name in order if name in counts)
