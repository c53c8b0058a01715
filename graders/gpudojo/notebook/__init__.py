"""Checks in a notebook: `check(train_epoch)` in a cell shows a function's results, with reasons.

The function is the one in the session, as it is now; nothing is read from a file.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

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
    code_of_cells,
    find_source,
    recording_lines,
    running_shell,
)

SEED: Final = PUBLIC_SEEDS[0]
OUTPUT_CHARACTERS: Final = 20_000  # of what student code prints; a notebook stores its output


class FunctionTask(NamedTuple):
    """A function that students write, and the exercise it belongs to."""

    exercise: Exercise
    function: Function


class _Wanted(NamedTuple):
    """An object of the session that is to be checked."""

    name: str  # of its task
    thing: Any


class _CheckOptions(NamedTuple):
    """How functions are checked."""

    hints: int  # how many are shown
    seed: int
    kind: str  # of device
    seconds: float  # the time limit of each function


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
    report = make_report(
        *things, namespace=namespace, hints=hints, seed=seed, bench=bench, seconds=seconds
    )
    show_report(report)


def make_report(
    *things: Any,
    namespace: dict[str, Any],
    hints: int | None = None,
    seed: int = SEED,
    bench: str = "auto",
    seconds: float = DEFAULT_SECONDS,
) -> CheckReport:
    """Check functions of a notebook, and return what `check` shows.

    `things` are functions or their names; without any, all that `namespace` defines are checked.
    `bench` is a device, `seconds` the time limit of each function. A user's mistake in an argument
    is told in the report, and so is a Ctrl-C. Raises BadDay where a day cannot be imported,
    BadEvidence where recorded evidence cannot be read, and OSError.
    """
    from virtual_cuda.hooks import (  # these import torch, as the first check does
        choose_device,
        device_count,
    )

    if hints is not None and (isinstance(hints, bool) or not isinstance(hints, int)):
        return _refuse_with(f"hints is a number, as in hints=2, not {type(hints).__name__}.")
    is_missing = bench in REAL_GPUS and not device_count(bench)
    if bench not in DEVICE_CHOICES or is_missing:
        return _refuse_with(f"{NoSuchDevice(bench)}.")
    # Which functions are to be checked, and what to say of things that are none.
    tasks = _tasks_by_name()
    remarks: list[str] = []
    if things:
        wanted = _functions_to_check(things, namespace, tasks, remarks)
    else:
        wanted = _defined_functions(namespace, tasks)
        if not wanted:
            remarks.append("Nothing to check yet: run the cells above first, from the top.")
    for name, _ in wanted:
        seeds = known_seeds(Path.cwd() / NO_SOURCE, tasks[name].exercise)
        if seeds is not None and seed not in seeds:
            return _refuse_with(f"{NoSuchSeed(seed, seeds)}.")
    # Check them one by one. A Ctrl-C leaves out the rest.
    kind, _ = choose_device(bench)
    if hints is None:
        hints = 1
    options = _CheckOptions(hints, seed, kind, seconds)
    checked: list[FunctionReport] = []
    for name, thing in wanted:
        try:
            report = _check_function(name, thing, namespace, tasks[name], options)
        except KeyboardInterrupt:
            remarks.append(STOPPED.format(name=name))
            break
        checked.append(report)
    if things:
        return CheckReport(tuple(checked), remarks=tuple(remarks))
    table = None
    if checked:
        table = _make_points_table(checked, tasks)
    return CheckReport(table=table, remarks=tuple(remarks))


def _refuse_with(sentence: str) -> CheckReport:
    """A report that only says why nothing was checked."""
    return CheckReport(remarks=(sentence,))


def _defined_functions(namespace: dict[str, Any], tasks: dict[str, FunctionTask]) -> list[_Wanted]:
    """The objects of a notebook that have the name of a task.

    `namespace` has the notebook's variables; `tasks` are by the name of the function.
    """
    wanted = []
    for name in tasks:
        thing = namespace.get(name)
        if thing is not None:
            wanted.append(_Wanted(name, thing))
    return wanted


def _functions_to_check(
    things: Sequence[Any],
    namespace: dict[str, Any],
    tasks: dict[str, FunctionTask],
    remarks: list[str],
) -> list[_Wanted]:
    """The objects to check. Adds to `remarks` what is to be said of things that are no task.

    `things` are functions or their names, `namespace` has the notebook's variables, and `tasks` are
    by the name of the function.
    """
    wanted = []
    for thing in things:
        name = _name_of_task(thing, namespace, tasks)
        if isinstance(thing, str) and name in namespace:
            thing = namespace[name]
        if name is None:
            remarks.append(_describe_other_thing(thing, tasks))
        elif isinstance(thing, str):
            remarks.append(f"`{name}` is not defined here yet: run its cell first.")
        else:
            wanted.append(_Wanted(name, thing))
    return wanted


def show_report(report: CheckReport) -> None:
    """Display a report: as HTML in a notebook, else as text."""
    if running_shell() is not None:
        from IPython.display import display

        display(report)  # type: ignore[no-untyped-call]
        return
    text = repr(report)
    try:
        print(text)
    except UnicodeEncodeError:  # a console with a small character set
        encoding = sys.stdout.encoding or "ascii"
        print(text.encode(encoding, "replace").decode(encoding))


def _tasks_by_name() -> dict[str, FunctionTask]:
    """The tasks of all installed days, by the name of the function.

    Imports every day. Raises BadDay where one cannot be imported.
    """
    tasks = {}
    for _, exercise in every_exercise():
        for function in exercise.functions:
            tasks[function.name] = FunctionTask(exercise, function)
    return tasks


def _name_of_task(
    thing: Any, namespace: dict[str, Any], tasks: dict[str, FunctionTask]
) -> str | None:
    """The task that an object is for: by its name in the notebook, or by its own name.

    Returns None if it is for none.
    """
    if thing is None:
        return None
    own_name = _own_name_of(thing)
    if not isinstance(thing, str):
        for name in tasks:
            if namespace.get(name) is thing:
                return name
    if own_name in tasks:
        return own_name
    return None


def _own_name_of(thing: Any) -> str | None:
    """A text itself, or the name of a function or class; None for anything else."""
    name = thing
    if callable(thing):
        name = getattr(thing, "__name__", None)
    if not isinstance(name, str):
        return None
    return name


def _describe_other_thing(thing: Any, tasks: dict[str, FunctionTask]) -> str:
    """Why an argument of `check` cannot be checked.

    In a sentence. `tasks` are by the name of the function.
    """
    name = _own_name_of(thing)
    if name is not None:
        similar = difflib.get_close_matches(name, tasks, 1, 0.6)
        if similar:
            return f"`{name[:80]}` is not a task; did you mean `{similar[0]}`?"
        known = ", ".join(f"`{task}`" for task in tasks)
        return f"`{name[:80]}` is not a task. The tasks are {known}."
    kind = f"an object of the class {type(thing).__name__}"
    if thing is None:
        kind = "None"
    return (
        f"check got {kind}. Pass a function, as in check(train_epoch), without calling it; "
        "check() checks everything that is defined."
    )


def _check_function(
    name: str, thing: Any, namespace: dict[str, Any], task: FunctionTask, options: _CheckOptions
) -> FunctionReport:
    """Grade one function of the session, and report on it.

    The random numbers of the next cell stay as they were. Its cells are left for other processes.
    Raises KeyboardInterrupt for a Ctrl-C, BadDay where the day's mistakes cannot be read, and
    OSError.
    """
    import torch  # not before the first check

    student = find_source(name, thing)
    submission = student.make_submission(namespace)
    leave_cells(student.file, code_of_cells(student, namespace))
    grader = FileGrader(submission.path, options.kind, options.seed, submission, watching=True)
    limits = Limits(options.seconds, shared=True)
    random_state = torch.get_rng_state()
    try:
        with bounded_output(OUTPUT_CHARACTERS), recording_lines(student, submission.names):
            results = grader.results_of(task.exercise, task.function, limits)
    finally:
        torch.set_rng_state(random_state)
    lines = None
    timelines = None
    # There is no pair if it was not run, for example because there is no reference.
    pair = grader.pairs.get(task.function.name)
    if pair is not None:
        lines = line_table(pair.yours, student)
        timelines = pair.make_timelines()
    return report_function(student, *task, results, options.hints, lines, timelines)


def _make_points_table(
    checked: Sequence[FunctionReport], tasks: dict[str, FunctionTask]
) -> PointsTable:
    """The points of all exercises of which a function was checked, and what to check next."""
    results = {}
    for report in checked:
        for result in report.results:
            results[report.name, result.check] = result
    rows: dict[str, ExercisePoints] = {}
    for report in checked:
        rows[report.exercise] = ExercisePoints(report.exercise)
    for exercise, function in tasks.values():
        row = rows.get(exercise.stem)
        if row is None:
            continue
        for check in function.checks:
            result_of_check = results.get((function.name, check.name))
            row.add_check(check.points, result_of_check)
    # First what is begun, then what is to do.
    for outcome in (Outcome.FAILED, Outcome.TODO):
        for report in checked:
            if outcome in report.outcomes:
                return PointsTable(tuple(rows.values()), f"check({report.name})")
    return PointsTable(tuple(rows.values()), "")
