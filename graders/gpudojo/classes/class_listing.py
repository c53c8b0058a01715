"""Lists the submissions of a class, and refuses what cannot be graded together."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.classes.class_state import (
    STATE,
    ClassState,
    StoredSubmission,
    Student,
    key_of_student,
)
from gpudojo.classes.grading_options import GradingOptions, name_of_secret
from gpudojo.classes.outputs import written_files
from gpudojo.model.errors import BadClass
from gpudojo.model.results_file import count_and_noun
from gpudojo.submissions.entries import IgnoredPath, Kind, Listing, Naming, SubmissionEntry
from gpudojo.submissions.listing import is_submission, list_submissions, unpack_class
from gpudojo.submissions.names import fold_case
from gpudojo.submissions.own_output import is_own_output

OWN_OUTPUT: Final = "`dojo` wrote it, and nobody has worked in it"
ALL_AGAIN: Final = "grade all of them again (leave out SUBMISSIONS)"


class ClassListing:
    """Lists what is given to `dojo grade`; zips of whole classes are unpacked into `folder`."""

    def __init__(self, options: GradingOptions, state: ClassState, folder: Path) -> None:
        self.options = options
        self.state = state
        self.folder = folder
        self._content_of: dict[Path, Path] = {}  # by path: the folder it was unpacked to, or itself

    def list_class(self) -> Listing:
        """The submissions of the class; zips of whole classes are unpacked to find them.

        Students of whom nothing is known but a zip that turned out to be a whole class are taken
        out of the state. Raises BadClass for results of a class, for paths that cannot be read and
        for files that cannot be written.
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
        noted = written_files(self.options.out)
        entries = []
        ignored = list(listing.ignored)
        for entry in listing.entries:
            if entry.origin in others or _holds_results(entry.origin):
                continue
            if is_own_output(entry.origin) or _holds_nothing_but(entry.origin, noted):
                ignored.append(IgnoredPath(entry.origin, OWN_OUTPUT))
                continue
            entries.append(entry)
        return Listing(tuple(entries), tuple(ignored))

    def _refuse_results(self) -> None:
        """Raises BadClass for a folder with results of another class."""
        own_folder = self.options.out.resolve()
        for path in self.options.submissions:
            if _holds_results(path) and path.resolve() != own_folder:
                raise BadClass(
                    f"{path} holds results of `dojo grade`; give the folder of submissions"
                )

    def _unpack_and_list(self) -> Listing:
        """What is given, with zips of classes unpacked.

        A zip that lies among submissions may be a student's, and is opened only if it was given by
        itself before. Where each path was unpacked to is noted in `_content_of`. Raises OSError.
        """
        own_output = []
        for path in self.options.submissions:
            whole_path = Path(os.path.abspath(path))
            if is_own_output(whole_path):
                own_output.append(IgnoredPath(path, OWN_OUTPUT))
            else:
                self._content_of[whole_path] = unpack_class(whole_path, self.folder)
        listing = self._list_contents(own_output)
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
            return self._list_contents(own_output)
        return listing

    def _list_contents(self, own_output: Sequence[IgnoredPath]) -> Listing:
        """The submissions in everything that was given; `own_output` is added to the ignored."""
        listing = list_submissions(list(self._content_of.values()))
        return Listing(listing.entries, (*own_output, *listing.ignored))

    def _forget_students_of(self, zips: set[Path]) -> None:
        """Remove students from the state who are nothing but one of these zips, unopened."""
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


def _holds_nothing_but(folder: Path, files: Collection[Path]) -> bool:
    """True for a folder with files in it, all of which are among these."""
    if not files or not folder.is_dir():
        return False
    inside = [path for path in folder.rglob("*") if path.is_file()]
    return bool(inside) and all(path in files for path in inside)


class KeptEntry(NamedTuple):
    """What was handed in before and is graded again from the files that the class keeps."""

    entry: SubmissionEntry
    submission: StoredSubmission
    student: str  # the name by which the student is known


def list_kept(
    options: GradingOptions, state: ClassState, given: Sequence[SubmissionEntry]
) -> list[KeptEntry]:
    """What is to be graded again of what is known.

    Without SUBMISSIONS that is everything; else what was not graded for all functions that count
    now. It has other names than the entries that are `given`.
    """
    if options.alone:
        return []
    used = {fold_case(entry.name) for entry in given}
    kept = []
    for student in state.students.values():
        for submission in reversed(student.sent):  # the latest has the plain name
            is_covered = state.day != options.day or _covers(submission.only, options.only)
            if options.submissions and is_covered:
                continue
            entry = _entry_of_kept(student, submission, _unused_name(student.name, used))
            used.add(fold_case(entry.name))
            kept.append(KeptEntry(entry, submission, student.name))
    return kept


def _covers(graded: Collection[str], only: Collection[str]) -> bool:
    """True if what was graded has all functions of `only`; both are empty for all of the day."""
    if not graded or not only:
        return not graded
    return set(graded).issuperset(only)


def _unused_name(name: str, used: Collection[str]) -> str:
    """The name, with a number where it is used."""
    number = 1
    unused = name
    while fold_case(unused) in used:
        number += 1
        unused = f"{name} ({number})"
    return unused


def _entry_of_kept(student: Student, submission: StoredSubmission, name: str) -> SubmissionEntry:
    """The entry, under this name, for a submission whose files are in the store."""
    return SubmissionEntry(
        name=name,
        student=student.student,
        origin=Path(submission.origin),
        kind=Kind.FILES,
        naming=Naming(student.naming),
        identifier=student.identifier,
        late=submission.late,
        submitted=submission.submitted,
        people=tuple(student.people),
        kept=submission.digest,
    )


def refuse_mixing(
    options: GradingOptions, state: ClassState, entries: Sequence[SubmissionEntry]
) -> None:
    """Raises BadClass if a part of the class is given with settings that all rows share.

    Rows of another day, device or secret cannot stand in one table with those of the others. And
    which functions count changes for all at once: by the course file, or for the whole class.
    """
    others = dict(state.students)
    for entry in entries:
        if not options.submissions or not entry.kept:
            others.pop(key_of_student(entry), None)
    reason = _reason_against_mixing(options, state)
    if not others or not reason:
        return
    more = count_and_noun(len(others), "more submission")
    first = next(iter(others.values()))
    raise BadClass(
        f"{options.out} has {more}, {reason}, or use another --out (the first of them: "
        f"{first.name})"
    )


def _reason_against_mixing(options: GradingOptions, state: ClassState) -> str:
    """How the class was graded, where these options differ, and what to do; empty where not."""
    if state.day != options.day:
        return f"graded for {state.day}; give --day {state.day}, grade all of them again"
    if state.bench != options.bench:
        return f"graded on {state.bench}; give --bench {state.bench}, {ALL_AGAIN}"
    if options.secret is not None and not state.seed.endswith(name_of_secret(options.secret)):
        return f"whose scenarios are drawn from another secret; leave out --seed, {ALL_AGAIN}"
    if state.chosen != sorted(options.chosen):
        words = [f"--only {name}" for name in state.chosen[:4]]
        if len(state.chosen) > 4:
            words.append("…")
        return f"graded with {' '.join(words)}; give it again, {ALL_AGAIN}"
    return ""
