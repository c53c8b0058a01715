"""Errors that gpudojo raises. An error carries data; its text is made last."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unicodedata import category

from virtual_cuda.errors import VirtualCudaError


def printable_text(text: str, keep: str = "", instead: str = "⟨U+{:04X}⟩") -> str:
    """Foreign text, such as a name, as it may be printed anywhere: on a terminal, in a table, on a page.

    Control characters, marks that turn the direction of writing and halves of characters are shown as code points, but
    for those to keep.
    """
    if text.isprintable():
        return text
    spaced = (" " if category(c) == "Zs" and c not in keep else c for c in text)
    return "".join(c if c.isprintable() or c in keep else instead.format(ord(c)) for c in spaced)


def describe_error(error: BaseException, most: int = 2000) -> tuple[str, str]:
    """The name of an exception's class and its text: plain, of a limited length, and such that UTF-8 can write them.

    The class may be a student's own: whatever it has made of its methods, no error comes out of them.
    """
    try:
        text = str(error)
    except (Exception, SystemExit):
        text = "its text could not be made"
    name = type.__dict__["__name__"].__get__(type(error))
    return _plain(name, 100), _plain(text, most)


def _plain(text: str, most: int) -> str:
    # `join` makes a text of the class str, and no other method of a subclass is called.
    return "".join([text])[:most].encode("utf-8", "backslashreplace").decode()


# The base class of every error that gpudojo or its device raises on purpose, so that one `except` reports both.
DojoError = VirtualCudaError


class Refusal(DojoError):
    """An error whose text is complete where it is raised."""


class CannotBegin(Refusal):
    """A skeleton of an exercise or a day cannot be made here."""


@dataclass(eq=False, repr=False)
class BadName(CannotBegin, ValueError):
    """A day, an exercise or a function is to have a name that it cannot have."""

    what: str
    name: str
    rule: str
    text = "{self.name!r} cannot be the name of {self.what}: {self.rule}"


@dataclass(eq=False, repr=False)
class NameTaken(CannotBegin):
    """What is to be made already exists, or something else has its name."""

    name: str
    by: str
    text = "{self.name} already exists: {self.by}"


class BadClass(Refusal):
    """A class cannot be graded with these options."""


@dataclass(eq=False, repr=False)
class ForkServerFailed(DojoError):
    """The process that starts the submissions' processes did not start, or keeps ending."""

    why: str
    log: str = ""

    def __str__(self) -> str:
        last = self.log.splitlines()[-1] if self.log else ""
        return f"the process that runs submissions did not start: {self.why}" + (
            f" ({last})" if last else ""
        )


@dataclass(eq=False, repr=False)
class NoCluster(DojoError):
    """A cluster cannot be reached, or has been lost."""

    address: str
    why: str
    kept: bool = False  # something may have been graded before it happened

    def __str__(self) -> str:
        more = (
            "; what has been graded is kept: run the same command again to resume"
            if self.kept
            else ""
        )
        return f"the scheduler at {self.address} {self.why}{more}"


@dataclass(eq=False, repr=False)
class BadWorker(DojoError):
    """A worker of a cluster may not grade."""

    worker: str
    why: str
    text = "the worker {self.worker} cannot be used: {self.why}"


class BadMessage(Refusal, ValueError):
    """What arrived over a cluster is not what was sent."""


@dataclass(eq=False, repr=False)
class BadEvidence(DojoError, ValueError):
    """Evidence that cannot be read or is not valid."""

    reason: str
    text = "this is not evidence: {self.reason}"


@dataclass(eq=False, repr=False)
class NoReference(DojoError, FileNotFoundError):
    """There is nothing to judge a file against."""

    name: str
    text = "no reference solution for {self.name} was found in a `reference` folder above it"


@dataclass(eq=False, repr=False)
class NoExercises(DojoError, FileNotFoundError):
    """A folder has no file that is named like an exercise."""

    folder: str
    text = (
        "no exercise files in {self.folder}; name the folder that has them, such as exercises/day8"
    )


@dataclass(eq=False, repr=False)
class NoSuchSeed(DojoError, ValueError):
    """A release has the reference's evidence for some seeds, and another one is asked for."""

    seed: int
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        *most, last = map(str, self.seeds)
        there = f"{', '.join(most)} and {last}" if most else last
        return (
            f"what the reference does is recorded here for the seeds {there}, not for {self.seed}"
        )


@dataclass(eq=False, repr=False)
class NotRecorded(DojoError):
    """A release has the reference's evidence for some devices, and another one is asked for."""

    bench: str
    text = (
        "what the reference does is recorded here for CUDA and for the plain CPU, not for {self.bench!r}; "
        "choose virtual or cpu"
    )


@dataclass(eq=False, repr=False)
class ReferenceFails(DojoError):
    """The reference solution does not run in a scenario, or a probe cannot use what it did."""

    function: str
    scenario: str
    raised: str
    source: str = ""  # file:line of the probe, where that raised

    def __str__(self) -> str:
        where = f" (raised at {self.source})" if self.source else ""
        return f"the reference solution of `{self.function}` does not run in `{self.scenario}`: {self.raised}{where}"


@dataclass(eq=False, repr=False)
class NotSprites(DojoError, ValueError):
    """A tensor to draw does not have the shape of sprites."""

    shape: tuple[int, ...]
    text = "sprites have the shape (N, 3, H, W), or (N, H, W) in grey; this has {self.shape}"


@dataclass(eq=False, repr=False)
class BadResults(DojoError, ValueError):
    """A file that should hold the results of a class does not."""

    path: str
    reason: str
    text = "{self.path} is not a file of results: {self.reason}"


@dataclass(eq=False, repr=False)
class _AtLine(DojoError):
    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}: {self.reason}"


class BadFile(_AtLine, ValueError):
    """A file that an instructor wrote or downloaded cannot be used as it is: a course, a roster, overrides."""


def suggest_name(
    name: str, names: Iterable[str], instead: str = "; there are {}", most: int = 12
) -> str:
    """What to write in place of an unknown name: the one that begins so, the most similar one, or else all, unless
    there are too many."""
    known = sorted(set(names))
    folded = {each.casefold(): each for each in reversed(known)}
    longer = [each for each in folded if name and each.startswith(name.casefold())]
    if (
        near := longer
        if len(longer) == 1
        else difflib.get_close_matches(name.casefold(), list(folded), 1, 0.6)
    ):
        return f"; did you mean {folded[near[0]]}?"
    return instead.format(", ".join(known)) if 0 < len(known) <= most and instead else ""


@dataclass(eq=False, repr=False)
class CannotExport(DojoError, ValueError):
    """Class results cannot be written in a format with what was given."""

    format: str
    reason: str
    text = "cannot export to {self.format}: {self.reason}"


class BadDay(_AtLine, ImportError):
    """A file of a day cannot be imported: a mistake of its author."""


class CannotReport(Refusal):
    """A report page cannot be made."""


class CannotRelease(Refusal):
    """A release cannot be made, or must not be."""


@dataclass(eq=False, repr=False)
class BadMarkers(DojoError, ValueError):
    """The solution markers of a reference file do not match, so that a stub would show the solution."""

    path: str
    line: int
    reason: str
    text = "{self.path}:{self.line}: {self.reason}"


_FRAMEWORK: Final = ("gpudojo.grading.", "gpudojo.model.")


def author_line(error: BaseException, student: Path | None = None) -> str:
    """`file:line` of the author's code that raised an error: of the probe or check, or of what it called nearby."""
    places = list(traceback.walk_tb(error.__traceback__))
    ours = [
        place
        for place in places
        if str(place[0].f_globals.get("__name__", "")).startswith(_FRAMEWORK)
    ]
    theirs = [
        place
        for place in places
        if place not in ours and place[0].f_code.co_filename != str(student)
    ]
    # The first is the probe or check itself; below it may be torch's frames, which say nothing to an author.
    home = os.path.dirname(theirs[0][0].f_code.co_filename) if theirs else ""
    near = (
        [place for place in theirs if os.path.dirname(place[0].f_code.co_filename) == home]
        or ours
        or places
    )
    return f"{_shown_path(near[-1][0].f_code.co_filename)}:{near[-1][1]}" if near else ""


def _shown_path(file: str) -> str:
    """Relative to where the user is, or to where the package is installed: the same on every machine."""
    folders = [folder for folder in sys.path if folder]
    with contextlib.suppress(OSError):  # student code may have removed the folder it runs in
        folders.insert(0, os.getcwd())
    folder = next((folder for folder in folders if file.startswith(os.path.join(folder, ""))), None)
    return file if folder is None else file[len(os.path.join(folder, "")) :]
