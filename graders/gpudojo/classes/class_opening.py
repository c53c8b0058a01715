"""Opens a class: its course file, its roster, and the options of its last run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpudojo.classes.class_state import ClassState
from gpudojo.classes.course_file import find_course_file, load_course
from gpudojo.classes.course_rules import CourseRules
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.classes.roster_file import read_roster
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import AttemptRule


def find_course(options: GradingOptions, state: ClassState) -> CourseRules:
    """The rules of the course for a run: those that change nothing, if there is no course file.

    They are in the file that is given, else in that of the last run, else in one beside the
    submissions. Raises BadFile for a file that cannot be used, and BadClass if the last file is
    gone.
    """
    if options.alone:
        return CourseRules()
    if options.course is not None:
        return load_course(options.course)
    if path_of_last_course(options.out, state) is not None:
        return load_last_course(options.out, state)
    path = find_course_file(options.submissions)
    if path is not None:
        return load_course(path)
    return load_last_course(options.out, state)


def path_of_last_course(out: Path, state: ClassState) -> Path | None:
    """The course file of the last run, if there was one and it is still there.

    Else None. `out` is the folder of the class.
    """
    path = Path(os.path.normpath(out / state.course))
    if state.course and path.is_file():
        return path
    return None


def load_last_course(out: Path, state: ClassState) -> CourseRules:
    """The rules in the file of the last run, or rules that change nothing if it had none.

    Raises BadFile for a file that cannot be used, and BadClass where it is gone.
    """
    if not state.course:
        return CourseRules()
    path = path_of_last_course(out, state)
    if path is None:
        raise BadClass(
            f"the course file of this class is gone: {os.path.normpath(out / state.course)}; "
            "give another one, which may be empty: dojo grade --course FILE"
        )
    return load_course(path)


def open_gradebook(
    out: Path,
    state: ClassState,
    rules: CourseRules,
    roster: Path | None = None,
    attempt: AttemptRule | None = None,
) -> Gradebook:
    """The class in a folder, with its course, roster and overrides.

    `roster` and `attempt` are used instead of those of the course or of the last run. Raises
    BadFile for a roster or overrides that cannot be used.
    """
    paths = rules.rosters
    if roster is not None:
        paths = (roster,)
    elif not paths and state.roster:
        paths = (out / state.roster,)
    people = None
    if paths:
        people = read_roster(paths, rules.zone)
    attempt = attempt or rules.attempt or state.attempt or "latest"
    return Gradebook(out, state, rules, people, attempt)


def complete_options(
    options: GradingOptions, state: ClassState, rules: CourseRules
) -> GradingOptions:
    """The options, with those of the course or the last run where the user asked for nothing.

    The folder of solutions is looked for by `find_reference`, if it is not given. An unknown name
    stays among the functions. Raises BadFile where the course names an exercise that the day does
    not have, BadClass where --only names one that the course does not count, BadDay where the day
    cannot be imported, and what `find_reference` raises.
    """
    # Options that the user did not give: those of the course, else of the last run.
    changed: dict[str, Any] = {}
    asked = options.asked
    if asked is not None:
        if "day" not in asked:
            changed["day"] = rules.day or state.day or options.day
        if "bench" not in asked and state.day:
            changed["bench"] = state.bench
        if state.limits is not None:
            for name in ("seconds", "memory", "gpu_memory"):
                if name not in asked:
                    changed[name] = getattr(state.limits, name)
    options = dataclasses.replace(options, **changed)
    if options.reference is None and options.find_reference is not None:
        reference = options.find_reference(options.day)
        options = dataclasses.replace(options, reference=reference)
    # The functions to grade: those that --only chose, else those that count in the course.
    exercises = exercises_of(options.day)
    named = options.functions_meant_by(options.only, exercises)
    counting: frozenset[str] = frozenset()
    if rules.worths:
        counting = _functions_that_count(options.day, rules)
        _refuse_uncounted(named, counting, exercises, rules)
    chosen = _functions_chosen(named, options.day, state)
    every = counting or options.functions_meant_by([each.stem for each in exercises], exercises)
    if chosen.issuperset(every):
        chosen = frozenset()
    only = chosen or counting
    return dataclasses.replace(options, only=only, named=named, chosen=chosen)


def _functions_chosen(named: frozenset[str], day: str, state: ClassState) -> frozenset[str]:
    """The functions that count because --only named them; empty where the course says which count.

    In a class that was graded, --only adds what it names, and takes nothing away.
    """
    if not named or not state.students or state.day != day:
        return named
    if not state.chosen:
        return frozenset()
    return named.union(state.chosen)


def _refuse_uncounted(
    named: frozenset[str],
    counting: frozenset[str],
    exercises: Sequence[Exercise],
    rules: CourseRules,
) -> None:
    """Raises BadClass if --only names functions of an exercise that does not count.

    `counting` are the functions that do; empty for all.
    """
    for exercise in exercises:
        functions = {function.name for function in exercise.functions}
        if counting and not functions.isdisjoint(named) and functions.isdisjoint(counting):
            raise BadClass(
                f"--only: {exercise.stem} does not count in {rules.path}; "
                "write it under [exercises] there, or leave it out"
            )


def _functions_that_count(day: str, rules: CourseRules) -> frozenset[str]:
    """The functions of the exercises that the course counts. Empty if these are all.

    Raises BadFile where the course names an exercise that the day does not have. Raises BadDay
    where the day cannot be imported.
    """
    exercises = exercises_of(day)
    worths = rules.worth_by_exercise(exercises)
    if len(worths) == len(exercises):
        return frozenset()
    names: set[str] = set()
    for exercise in exercises:
        if exercise.stem in worths:
            names.update(function.name for function in exercise.functions)
    return frozenset(names)
