"""Opens a class: its course file, its roster, and the options of its last run."""

from __future__ import annotations

import dataclasses
import os
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
from gpudojo.model.results import AttemptRule


def find_course(options: GradingOptions, state: ClassState) -> CourseRules:
    """The rules of the course for a run. Raises BadFile, and BadClass if the last file is gone.

    They are in the file that is given, else in that of the last run, else in one beside the
    submissions.
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
    """The course file of the last run, if there was one and it is still there."""
    path = Path(os.path.normpath(out / state.course))
    if state.course and path.is_file():
        return path
    return None


def load_last_course(out: Path, state: ClassState) -> CourseRules:
    """The rules in the file of the last run. Raises BadFile, and BadClass where it is gone."""
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
    """The class in a folder, with its course, roster and overrides. Raises BadFile.

    `roster` and `attempt` are used instead of those of the course or of the last run.
    """
    path = roster or rules.roster
    if path is None and state.roster:
        path = out / state.roster
    people = None
    if path is not None:
        people = read_roster(path, rules.zone)
    attempt = attempt or rules.attempt or state.attempt or "latest"
    return Gradebook(out, state, rules, people, attempt)


def complete_options(
    options: GradingOptions, state: ClassState, rules: CourseRules
) -> GradingOptions:
    """The options, with those of the course or the last run where the user asked for nothing.

    Raises BadFile where the course names an exercise that the day does not have.
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
    if options.reference is None and options.references is not None:
        options = dataclasses.replace(options, reference=options.references / options.day)
    # The functions to grade: those that were asked for, else those that count in the course.
    exercises = exercises_of(options.day)
    only = options.functions_meant_by(options.only, exercises)
    if rules.worths and not only:
        only = _functions_that_count(options.day, rules)
    return dataclasses.replace(options, only=only)


def _functions_that_count(day: str, rules: CourseRules) -> frozenset[str]:
    """The functions of the exercises that the course counts. Empty if these are all.

    Raises BadFile where the course names an exercise that the day does not have.
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
