"""Lists the submissions of a class, and refuses what cannot be graded together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpudojo.classes.class_state import STATE, ClassState, Student, key_of_student
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.model.errors import BadClass
from gpudojo.model.results_file import count_and_noun
from gpudojo.submissions.entries import Kind, Listing, SubmissionEntry
from gpudojo.submissions.listing import is_submission, list_submissions, unpack_class


class ClassListing:
    """Lists what is given to `dojo grade`; zips of whole classes are unpacked into `folder`."""

    def __init__(self, options: GradingOptions, state: ClassState, folder: Path) -> None:
        self.options = options
        self.state = state
        self.folder = folder
        self._content_of: dict[Path, Path] = {}  # by path: the folder it was unpacked to, or itself

    def list_class(self) -> Listing:
        """The submissions. Raises BadClass for results of a class and files that cannot be written.

        Students of whom nothing is known but a zip that turned out to be a whole class are taken
        out of the state.
        """
        self._refuse_results()
        try:
            listing = self._unpack_and_list()
        except OSError as error:
            raise BadClass(f"cannot write {error.filename}: {error.strerror}") from None
        zips_of_classes = set()
        for path, content in self._content_of.items():
            if path != content and path.is_file():
                zips_of_classes.add(path)
        self._forget_students_of(zips_of_classes)
        # Neither what was unpacked nor our own files are somebody's work.
        report = Path(os.path.abspath(self.options.out)) / "report"
        others = {*zips_of_classes, report}
        entries = []
        for entry in listing.entries:
            if entry.origin not in others and not _holds_results(entry.origin):
                entries.append(entry)
        return Listing(tuple(entries), listing.ignored)

    def _refuse_results(self) -> None:
        """Raises BadClass for a folder with results of another class."""
        own_folder = self.options.out.resolve()
        for path in self.options.submissions:
            if _holds_results(path) and path.resolve() != own_folder:
                raise BadClass(
                    f"{path} holds results of `dojo grade`; give the folder of submissions"
                )

    def _unpack_and_list(self) -> Listing:
        """What is given, with zips of classes unpacked. Raises OSError.

        A zip that lies among submissions may be a student's, and is opened only if it was given
        by itself before.
        """
        for path in self.options.submissions:
            whole_path = Path(os.path.abspath(path))
            self._content_of[whole_path] = unpack_class(path, self.folder)
        listing = list_submissions(list(self._content_of.values()))
        if not self.folder.is_dir():
            return listing
        opened_before = False
        for entry in listing.entries:
            if entry.kind is not Kind.ZIP:
                continue
            content = unpack_class(entry.origin, self.folder, only_known=True)
            if content != entry.origin:
                self._content_of[entry.origin] = content
                opened_before = True
        if opened_before:
            return list_submissions(list(self._content_of.values()))
        return listing

    def _forget_students_of(self, zips: set[Path]) -> None:
        """Forget students who are nothing but one of these zips, unopened."""
        for key, student in list(self.state.students.items()):
            if student.sent and _is_nothing_but(student, zips):
                del self.state.students[key]


def _is_nothing_but(student: Student, zips: set[Path]) -> bool:
    """True if all that a student handed in are these zips, which could not be read as such."""
    for submission in student.sent:
        if not submission.problem or Path(submission.origin) not in zips:
            return False
    return True


def _holds_results(folder: Path) -> bool:
    """True if a folder holds results of `dojo grade` and nobody's work."""
    return (folder / STATE).is_file() and not is_submission(folder)


def refuse_mixing(
    options: GradingOptions, state: ClassState, entries: Sequence[SubmissionEntry]
) -> None:
    """Raises BadClass if others in the class were graded for another day or other functions.

    Their rows cannot stand in one table.
    """
    others = set(state.students)
    others.difference_update(key_of_student(entry) for entry in entries)
    if not others:
        return
    if state.day == options.day and state.only == sorted(options.only):
        return
    more = count_and_noun(len(others), "more submission")
    functions = ", ".join(state.only) or "all functions"
    raise BadClass(
        f"{options.out} has {more}, graded for {state.day}, {functions}; "
        f"{_options_used_before(options, state)}, grade all of them again, or use another --out"
    )


def _options_used_before(options: GradingOptions, state: ClassState) -> str:
    """What to give to grade for the same day and functions as before."""
    if state.day != options.day:
        return f"give --day {state.day}"
    if not state.only:
        return "leave out --only"
    words = [f"--only {name}" for name in state.only[:4]]
    if len(state.only) > 4:
        words.append("…")
    return f"give {' '.join(words)}"
