"""May this be its name? Words that can stand in a path and in code, on every system, and that nothing else has."""

from __future__ import annotations

import builtins
import keyword
import re
from typing import Final

from graders.authoring.surroundings import Surroundings
from graders.curriculum.catalogue import DAY
from graders.errors import BadName, CannotBegin, NameTaken

LONGEST: Final = 40  # as a file name, and so that a line with two of them is not too long
_EXERCISE: Final = re.compile(r"[a-z](?:_?[a-z0-9])*")
_FUNCTION: Final = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*")
# A file of such a name cannot be made on Windows, whatever its suffix.
_DEVICES: Final = {"con", "prn", "aux", "nul", *(f"{word}{digit}" for word in ("com", "lpt") for digit in range(10))}


def refuse_day(name: str, known: Surroundings) -> None:
    if not DAY.fullmatch(name):
        raise BadName("a day", name, "it is called day and a number, such as day9")
    if name in known.stems:
        raise NameTaken(name, f"it has {len(known.stems[name])} exercises; add to it with: dojo new exercise {name} …")


def refuse_exercise(name: str, day: str, stem: str, known: Surroundings) -> None:
    if day not in known.stems:
        there = ", ".join(known.stems) or "none"
        raise CannotBegin(f"there is no day {day!r} (the days are: {there}); begin it with: dojo new day {day}")
    if not _EXERCISE.fullmatch(name) or keyword.iskeyword(name):
        rule = "small letters, digits and single _ between them, no word of Python's own, such as brightest_sprite"
        raise BadName("an exercise", name, rule + ("; its number comes by itself" if name[:1].isdigit() else ""))
    if len(name) > LONGEST or name in _DEVICES:
        why = f"it is longer than {LONGEST} letters" if len(name) > LONGEST else "Windows keeps that name for itself"
        raise BadName("an exercise", name, why)
    if DAY.fullmatch(name):
        raise BadName("an exercise", name, "a file called so is taken for a whole day")
    if name in known.modules.get(day, ()):
        raise NameTaken(name, f"graders/{day}/{name}")
    for other, stems in known.stems.items():
        for taken in stems:
            # With the same number it would be the same file name, by which a submission's exercise is known.
            if taken == stem or (other == day and taken[3:] == name):
                raise NameTaken(name, f"{other} has an exercise {taken}")
    if stem[2] != "_":
        raise CannotBegin(f"{day} has 99 exercises, which is all that two digits can count")


def refuse_functions(functions: tuple[str, ...], known: Surroundings) -> None:
    if not functions:
        raise CannotBegin("an exercise has one function at least; name them like this: --functions first,second")
    for name in functions:
        if not _FUNCTION.fullmatch(name) or keyword.iskeyword(name) or keyword.issoftkeyword(name):
            rule = "letters, digits and single _ between them, no word of Python's own"
            raise BadName("a function", name, rule)
        if len(name) > LONGEST:
            raise BadName("a function", name, f"it is longer than {LONGEST} letters")
        if hasattr(builtins, name):
            raise BadName("a function", name, "Python has one of its own that is called so")
        if functions.count(name) > 1:
            raise NameTaken(name, "it is given twice")
        if name in known.functions:  # in a notebook, a function is known by its name alone
            raise NameTaken(name, f"{known.functions[name]} has a function of that name")


def refuse_title(title: str) -> None:
    """It stands in texts of Python, as it is."""
    if not title.strip() or len(title) > 80 or not title.isprintable() or set(title) & set('"\\$'):
        rule = 'one line of at most 80 letters, without ", \\ and $'
        raise BadName("anything that has a title", title, rule)
