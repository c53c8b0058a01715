"""Checks in a notebook: `check(train_epoch)` in a cell shows a function's results, with reasons.

The function is the one in the session, as it is now; nothing is read from a file.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from virtual_cuda.errors import NoSuchDevice
from virtual_cuda.hooks import DEVICE_CHOICES, REAL_GPUS

from gpudojo.grading.engine import FileGrader
from gpudojo.grading.feedback import ExercisePoints
from gpudojo.grading.limits import DEFAULT_SECONDS, Limits, bounded_output
from gpudojo.grading.references import known_seeds
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.grading.sources import leave_cells
from gpudojo.model.catalogue import every_exercise
from gpudojo.model.errors import NoSuchSeed
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import Outcome
from gpudojo.notebook.reports import (
    STOPPED,
    CheckReport,
    FunctionReport,
    PointsTable,
    line_table,
    report_function,
)
from gpudojo.notebook.session_functions import (
    NO_SOURCE,
    cells_to_run,
    find_source,
    recording_lines,
)

SEED: Final = PUBLIC_SEEDS[0]
OUTPUT_CHARACTERS: Final = 20_000  # of what student code prints; a notebook stores its output
Task = tuple[Exercise, Function]


def check(
    *things: Any,
    hints: int | None = None,
    seed: int = SEED,
    bench: str = "auto",
    seconds: float = DEFAULT_SECONDS,
) -> None:
    """Check functions of this notebook, `check(train_epoch)`, or everything it defines, `check()`.

    `hints=2` shows two hints. `seconds` is the time limit of each function; interrupting the cell
    ends the check.
    """
    namespace = sys._getframe(1).f_globals
    if namespace.get("__name__") != "__main__":
        return  # pytest or `dojo grade` runs the cells to find functions, and checks them itself
    show(
        make_report(
            *things, namespace=namespace, hints=hints, seed=seed, bench=bench, seconds=seconds
        )
    )


def make_report(
    *things: Any,
    namespace: dict[str, Any],
    hints: int | None = None,
    seed: int = SEED,
    bench: str = "auto",
    seconds: float = DEFAULT_SECONDS,
) -> CheckReport:
    """Check functions of a notebook, and return what `check` shows.

    `things` are functions or their names; without any, all that are defined are checked. A user's
    mistake in an argument is told in the report.
    """
    from virtual_cuda.hooks import (  # these import torch, as the first check does
        choose_device,
        device_count,
    )

    if hints is not None and (isinstance(hints, bool) or not isinstance(hints, int)):
        return CheckReport(said=(f"hints is a number, as in hints=2, not {type(hints).__name__}.",))
    missing = bench in REAL_GPUS and not device_count(bench)
    if bench not in DEVICE_CHOICES or missing:
        return CheckReport(said=(f"{NoSuchDevice(bench)}.",))
    # Which functions are to be checked, and what to say of things that are none.
    tasks = _tasks_by_name()
    said: list[str] = []
    wanted: list[tuple[str, Any]] = []
    for thing in things:
        name = _name_of_task(thing, namespace, tasks)
        if isinstance(thing, str) and name in namespace:
            thing = namespace[name]
        if name is None:
            said.append(_why_not_checked(thing, tasks))
        elif isinstance(thing, str):
            said.append(f"`{name}` is not defined here yet: run its cell first.")
        else:
            wanted.append((name, thing))
    if not things:
        wanted = [(name, namespace[name]) for name in tasks if namespace.get(name) is not None]
        if not wanted:
            said.append("Nothing to check yet: run the cells above first, from the top.")
    found: list[FunctionReport] = []
    for exercise in {tasks[name][0].stem: tasks[name][0] for name, _ in wanted}.values():
        seeds = known_seeds(Path.cwd() / NO_SOURCE, exercise)
        if seeds is not None and seed not in seeds:
            return CheckReport(said=(f"{NoSuchSeed(seed, seeds)}.",))
    # Check them one by one. A Ctrl-C leaves out the rest.
    kind = choose_device(bench)[0]
    count = 1 if hints is None else hints
    try:
        for name, thing in wanted:
            found.append(
                _check_function(name, thing, namespace, tasks[name], count, seed, kind, seconds)
            )
    except KeyboardInterrupt:
        said.append(STOPPED.format(name=wanted[len(found)][0]))
    if things:
        return CheckReport(tuple(found), said=tuple(said))
    return CheckReport(table=_make_points_table(found, tasks) if found else None, said=tuple(said))


def show(report: CheckReport) -> None:
    """Displays a report: as HTML in a notebook, else as text."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        from IPython.display import display

        display(report)  # type: ignore[no-untyped-call]
        return
    text = repr(report)
    try:
        print(text)
    except UnicodeEncodeError:  # a console with a small character set
        encoding = sys.stdout.encoding or "ascii"
        print(text.encode(encoding, "replace").decode(encoding))


def _tasks_by_name() -> dict[str, Task]:
    return {
        function.name: (exercise, function)
        for _, exercise in every_exercise()
        for function in exercise.functions
    }


def _name_of_task(thing: Any, namespace: dict[str, Any], tasks: dict[str, Task]) -> str | None:
    """The task that an object is for: by its name in the notebook, or by its own name."""
    if isinstance(thing, str):
        return thing if thing in tasks else None
    here = next(
        (name for name in tasks if thing is not None and namespace.get(name) is thing), None
    )
    own = getattr(thing, "__name__", None)
    return here or (own if callable(thing) and isinstance(own, str) and own in tasks else None)


def _why_not_checked(thing: Any, tasks: dict[str, Task]) -> str:
    """Why an argument of `check` cannot be checked."""
    own = thing if isinstance(thing, str) else getattr(thing, "__name__", None)
    if isinstance(own, str) and (isinstance(thing, str) or callable(thing)):
        near = difflib.get_close_matches(own, tasks, 1, 0.6)
        known = ", ".join(f"`{name}`" for name in tasks)
        return f"`{own[:80]}` is not a task" + (
            f"; did you mean `{near[0]}`?" if near else f". The tasks are {known}."
        )
    kind = "None" if thing is None else f"an object of the class {type(thing).__name__}"
    return (
        f"check got {kind}. Pass a function, as in check(train_epoch), without calling it; "
        "check() checks everything that is defined."
    )


def _check_function(
    name: str,
    thing: Any,
    namespace: dict[str, Any],
    task: Task,
    hints: int,
    seed: int,
    kind: str,
    seconds: float,
) -> FunctionReport:
    import torch  # not before the first check

    exercise, function = task
    student = find_source(name, thing)
    submission = student.submission(namespace)
    leave_cells(student.file, cells_to_run(student, namespace))
    grader = FileGrader(submission.path, kind, seed, submission, watching=True)
    state = torch.get_rng_state()  # a check does not change the random numbers of the next cell
    try:
        with bounded_output(OUTPUT_CHARACTERS), recording_lines(student, submission.names):
            results = grader.results(exercise, function, Limits(seconds, shared=True))
    finally:
        torch.set_rng_state(state)
    # None if it was not run, for example because there is no reference.
    pair = grader.pairs.get(function.name)
    recorded = (line_table(pair.yours, student), pair.make_timelines()) if pair is not None else ()
    return report_function(student, exercise, function, results, hints, *recorded)


def _make_points_table(found: Sequence[FunctionReport], tasks: dict[str, Task]) -> PointsTable:
    results = {one.name: {result.check: result for result in one.results} for one in found}
    rows: dict[str, ExercisePoints] = {}
    for stem in dict.fromkeys(one.exercise for one in found):
        row = rows[stem] = ExercisePoints(stem)
        for check, name in (
            (c, f.name) for e, f in tasks.values() if e.stem == stem for c in f.checks
        ):
            row.add(check.points, results.get(name, {}).get(check.name))
    waiting = [
        one.name
        for outcome in (Outcome.FAILED, Outcome.TODO)
        for one in found
        if outcome in one.outcomes
    ]
    return PointsTable(tuple(rows.values()), f"check({waiting[0]})" if waiting else "")
