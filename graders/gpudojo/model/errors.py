"""Errors that gpudojo raises. An error carries data; its text is made last."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple
from unicodedata import category

from virtual_cuda.errors import VirtualCudaError

# As objects print themselves, unless their class says otherwise.
_OBJECT_AT_ADDRESS: Final = re.compile(
    r"<(?:[\w<>]+\.)*(\w+) object\b[\w.<> ]*? at 0x[0-9a-fA-F]+>?"
)
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def printable_text(text: str, keep: str = "", instead: str = "⟨U+{:04X}⟩") -> str:
    """Foreign text, such as a name, as it may be printed on a terminal, in a table or on a page.

    Control characters, marks that turn the direction of writing and halves of characters are
    replaced by `instead`, formatted with their code point. Those in `keep` stay. Every kind of
    space becomes " ".
    """
    if text.isprintable():
        return text
    found = []
    for character in text:
        if character in keep:
            found.append(character)
        elif category(character) == "Zs":
            found.append(" ")
        elif character.isprintable():
            found.append(character)
        else:
            found.append(instead.format(ord(character)))
    return "".join(found)


def without_addresses(text: str) -> str:
    """A text in which objects stand by their type: `<Watch object>` for `<Watch object at 0x7f…>`.

    Where an object lies in memory differs from run to run, and says nothing. An address may be cut
    off at the end of the text.
    """
    if " at 0x" not in text:
        return text
    text = _OBJECT_AT_ADDRESS.sub(r"<\1 object>", text)
    return _ADDRESS.sub("", text)


def replace_unprintable(text: str) -> str:
    """A text with an underscore for each character that cannot be printed."""
    characters = []
    for character in text:
        if character.isprintable():
            characters.append(character)
        else:
            characters.append("_")
    return "".join(characters)


def describe_error(error: BaseException, most: int = 2000) -> tuple[str, str]:
    """The name of an exception's class and its text, cut off and such that UTF-8 can write them.

    Objects in the text stand by their type, without an address.
    The name has at most 100 characters, the text at most `most`. The class may be a student's own:
    an Exception or SystemExit of its `__str__` is replaced by a text that says so.
    """
    try:
        text = str(error)
    except (Exception, SystemExit):  # whatever a student's class may raise
        text = "its text could not be made"
    name = type.__dict__["__name__"].__get__(type(error))
    return _encodable_text(name, 100), without_addresses(_encodable_text(text, most))


def _encodable_text(text: str, most: int) -> str:
    """The beginning of a text, such that UTF-8 can write it."""
    # `join` makes a text of the class str, and no other method of a subclass is called.
    return "".join([text])[:most].encode("utf-8", "backslashreplace").decode()


# The base class of every error that gpudojo or its device raises on purpose, so that one `except`
# reports both.
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
        """The reason, with the last line of the server's log where it has one."""
        lines = self.log.splitlines()
        last = ""
        if lines and lines[-1]:
            last = f" ({lines[-1]})"
        return f"the process that runs submissions did not start: {self.why}{last}"


class CannotStartChild(ForkServerFailed):
    """The machine does not let a process for a submission start; that is no fault of a student."""

    def __str__(self) -> str:
        """The machine's reason, and what to do."""
        return (
            f"this machine starts no more processes for submissions: {self.why}. Nobody loses "
            "points by that, and what has run is kept: free memory, processes or space for "
            "temporary files, or use fewer --jobs, and run the same command again to resume"
        )


@dataclass(eq=False, repr=False)
class NoCluster(DojoError):
    """A cluster cannot be reached, or has been lost."""

    address: str
    why: str
    kept: bool = False  # something may have been graded before it happened

    def __str__(self) -> str:
        more = ""
        if self.kept:
            more = "; what has been graded is kept: run the same command again to resume"
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
    text = (
        "there is nothing to compare {self.name} with, neither a `reference` folder above it nor "
        "evidence of a release; in a repository for students, run: pip install -r requirements.txt"
    )


@dataclass(eq=False, repr=False)
class NoExercises(DojoError, FileNotFoundError):
    """A folder has no file that is named like an exercise."""

    folder: str
    advice: str  # what to do
    text = "no exercise files in {self.folder}; {self.advice}"


@dataclass(eq=False, repr=False)
class NoSuchSeed(DojoError, ValueError):
    """A release has the reference's evidence for some seeds, and another one is asked for."""

    seed: int
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        """The sentence that lists the recorded seeds and names the one that is missing."""
        *most, last = map(str, self.seeds)
        if most:
            seeds = f"{', '.join(most)} and {last}"
        else:
            seeds = last
        return (
            f"what the reference does is recorded here for the seeds {seeds}, not for {self.seed}"
        )


@dataclass(eq=False, repr=False)
class NotRecorded(DojoError):
    """A release has the reference's evidence for some devices, and another one is asked for."""

    bench: str
    text = (
        "what the reference does is recorded here for CUDA and for the plain CPU, "
        "not for {self.bench!r}; choose virtual or cpu"
    )


@dataclass(eq=False, repr=False)
class ReferenceFails(DojoError):
    """The reference solution does not run in a scenario, or a probe cannot use what it did."""

    function: str
    scenario: str
    raised: str
    source: str = ""  # file:line of the probe, where that raised

    def __str__(self) -> str:
        """The sentence that names function, scenario and error, and the probe's line where it is
        known.
        """
        where = ""
        if self.source:
            where = f" (raised at {self.source})"
        return (
            f"the reference solution of `{self.function}` does not run in `{self.scenario}`:"
            f" {self.raised}{where}"
        )


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
        line = f", line {self.line}"
        if self.line is None:
            line = ""
        return f"{self.file}{line}: {self.reason}"


class BadFile(_AtLine, ValueError):
    """A file of an instructor's cannot be used: a course, a roster, overrides."""


def suggest_name(
    name: str, names: Iterable[str], instead: str = "; there are {}", most: int = 12
) -> str:
    """What to write in place of an unknown name, as the end of a sentence.

    That is the only one of `names` that begins so, in whatever case, else the most similar one,
    else all of them, put into `instead`. Returns "" where none is similar and there are none, more
    than `most`, or `instead` is "".
    """
    known = sorted(set(names))
    folded = {each.casefold(): each for each in reversed(known)}
    similar = [each for each in folded if name and each.startswith(name.casefold())]
    if len(similar) != 1:
        similar = difflib.get_close_matches(name.casefold(), list(folded), 1, 0.6)
    if similar:
        return f"; did you mean {folded[similar[0]]}?"
    if not instead or not 0 < len(known) <= most:
        return ""
    return instead.format(", ".join(known))


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
    """The solution markers of a reference file do not match. A stub would show the solution."""

    path: str
    line: int
    reason: str
    text = "{self.path}:{self.line}: {self.reason}"


_FRAMEWORK: Final = ("gpudojo.grading.", "gpudojo.model.")


class Place(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        """`file:line`, with a path that is relative where that can be."""
        return f"{_relative_path(self.file)}:{self.line}"


def place_of_declaration() -> Place | None:
    """The line of the author's file that declares what is being declared.

    That is the innermost running one outside of grading and model; None where there is none, and
    where Python does not tell what is running.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_FRAMEWORK):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def author_line(
    error: BaseException, student: Path | None = None, declared: Place | None = None
) -> str:
    """`file:line` of the author's code that raised an error; "" where nothing tells it.

    That is a line of the probe or check itself, or of what it called in the same folder: below it
    may be frames of torch, which say nothing to an author. Frames of `student` do not count. Where
    only code of gpudojo raised it, it is where the probe or check was `declared`.
    """
    frames = []  # each a file and a line
    of_authors = []
    of_framework = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = Place(frame.f_code.co_filename, line)
        frames.append(place)
        if str(frame.f_globals.get("__name__", "")).startswith(_FRAMEWORK):
            of_framework.append(place)
        elif place.file != str(student):
            of_authors.append(place)
    # The innermost line that says something to an author.
    if of_authors:
        home = os.path.dirname(of_authors[0].file)
        near = [place for place in of_authors if os.path.dirname(place.file) == home]
        return str(near[-1])
    if declared is not None:
        return str(declared)
    if not frames:
        return ""
    return str((of_framework or frames)[-1])


def _relative_path(file: str) -> str:
    """A path relative to where the user is or where the package is: the same on every machine.

    Returns the path unchanged if it lies in neither the current folder nor a folder of `sys.path`.
    """
    folders = [folder for folder in sys.path if folder]
    with contextlib.suppress(OSError):  # student code may have removed the folder it runs in
        folders.insert(0, os.getcwd())
    for folder in folders:
        start = os.path.join(folder, "")
        if file.startswith(start):
            return file.removeprefix(start)
    return file
