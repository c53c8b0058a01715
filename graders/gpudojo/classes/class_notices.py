"""What a teacher should know of a class: extensions and overrides that are not used as written."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpudojo.classes.gradebook import ClassList, Gradebook
from gpudojo.classes.names import MOST_NAMES, name_key, suggest_people
from gpudojo.classes.overrides import EVERYONE, LATE, REMOVED, REVIEW, LogEntry
from gpudojo.classes.participants import Participant, describe_namesakes, find_participants
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results_file import first_names


def notices_about_class(book: Gradebook, class_list: ClassList) -> list[str]:
    """Sentences about extensions and overrides that are not used as written, each with its file.

    One is about those who were removed by hand. Raises BadDay where the exercises of the day
    cannot be imported, and BadFile where the course names one that is not there.
    """
    everybody = [*class_list.participants, *class_list.removed]
    extensions = _ExtensionNotices(book, everybody)
    extensions.note_all()
    notices = extensions.notices + _notices_about_overrides(book, class_list)
    notices += _notices_about_dates(book, class_list.participants)
    if class_list.removed:
        names = ", ".join(each.full_name for each in class_list.removed)
        notices.append(f"removed by hand: {names}; to take one back: dojo remove --undo STUDENT")
    return notices


# Extensions


class _ExtensionNotices:
    """Collects sentences about extensions, each with its line in the course file."""

    def __init__(self, book: Gradebook, participants: Sequence[Participant]) -> None:
        self.course = book.course
        self.participants = participants
        self.notices: list[str] = []

    def note_all(self) -> None:
        """Note extensions of nobody, of several, of one by two names, and useless ones.

        Each is a sentence that is added to `notices`.
        """
        extension_of: dict[Participant, str] = {}
        for name in self.course.extensions:
            matching = find_participants(name, self.participants)
            if not matching:
                self._note_unknown(name)
            if len(matching) > 1:
                namesakes = describe_namesakes(name, matching)
                self._add_notice(name, f"{namesakes}; all of them have the extension")
            for participant in matching:
                other = extension_of.setdefault(participant, name)
                if other != name:
                    self._add_notice(name, f"{name!r} is {other!r}, whose extension is used")
        for useless in self.course.useless_extensions():
            self._add_notice(useless.who, useless.sentence)

    def _note_unknown(self, name: str) -> None:
        """Note that nobody has a name, and which one may be meant."""
        hint = suggest_people(name, [each.names for each in self.participants], "")
        self._add_notice(name, f"nobody is called {name!r}{hint}")

    def _add_notice(self, name: str, reason: str) -> None:
        """Add a sentence about the extension of somebody to `notices`, with its line."""
        error = self.course.bad_setting(reason, "extensions", name)
        self.notices.append(str(error))


# Dates


def _notices_about_dates(book: Gradebook, participants: Sequence[Participant]) -> list[str]:
    """Sentences about dates of the roster that are not those of the files that were graded.

    There are three: the roster may be older than the files, or newer, or two tables of it may
    differ.
    """
    with_later_date = []
    without_date = []
    with_another_date = []
    for participant in participants:
        date = participant.roster_date
        if date is None or not participant.submissions:
            continue
        times = [each.time for each in participant.dates.values()]
        times += [copy.date.time for copy in participant.copies if copy.date is not None]
        earlier = [each for each in participant.earlier_roster_dates if each.time not in times]
        if earlier and date.time in times:
            others = " or ".join(dict.fromkeys(each.text for each in earlier))
            with_later_date.append(f"{participant.full_name} ({date.text}, and not {others})")
        if not participant.time_of(participant.submissions[-1]):
            without_date.append(participant.full_name)
        elif times and date.time not in times:
            with_another_date.append(participant.full_name)
    again = f"dojo grade --out {book.out}"
    sentences = []
    if with_later_date:
        names = first_names(with_later_date, MOST_NAMES)
        sentences.append(
            "tables of the roster have several dates, and the files that were graded were given "
            f"the latest: {names}; files of an earlier date: leave the later table out of the "
            f"roster, give these files again: dojo grade SUBMISSIONS --out {book.out}, and put the "
            "table back; or: dojo override STUDENT --late TIME"
        )
    if without_date:
        names = first_names(without_date, MOST_NAMES)
        sentences.append(
            f"the roster has the date of an earlier attempt of {names}: when the latest one was "
            "handed in is not known, and it does not count as late; download the table again, "
            f"and: {again}"
        )
    if with_another_date:
        names = first_names(with_another_date, MOST_NAMES)
        sentences.append(
            f"the roster has another date than when the files were graded, of {names}: that of "
            "the files is kept; if they handed in again, grade the new download, else the same "
            f"files with this roster: dojo grade SUBMISSIONS --out {book.out}"
        )
    if book.course.rosters:
        return [str(book.course.bad_setting(each, "roster")) for each in sentences]
    return sentences


# Overrides


class UnusedOverrides:
    """Finds overrides that change nothing: of items that are not graded, and of nobody."""

    def __init__(self, book: Gradebook, class_list: ClassList) -> None:
        """Find the items, and who has which key, also of those who were removed.

        Raises BadDay where the exercises of the day cannot be imported, and BadFile where the
        course names one that is not there.
        """
        self.book = book
        self.items = _names_of_items(book)
        self.owners: dict[str, Participant] = {}
        for participant in (*class_list.participants, *class_list.removed):
            for key in participant.keys:
                self.owners[key] = participant

    def reason_unused(self, entry: LogEntry) -> str:
        """Why an entry that is in force is not used; empty where it is.

        Where the best attempt counts, rows may be made: raises BadClass, BadFile, BadDay or OSError
        where they cannot be.
        """
        if entry.item not in self.items:
            return f"{entry.item} is not graded any more"
        if entry.key != EVERYONE and entry.key not in self.owners:
            return f"nobody is {entry.student!r} any more"
        owner = self.owners.get(entry.key)
        if entry.item == LATE and owner is not None:
            counted = self.book.counted_submission(owner)
            if counted is not None and not entry.is_of_hand_in(counted):
                return "it was decided of another hand-in"
        return ""


def _notices_about_overrides(book: Gradebook, class_list: ClassList) -> list[str]:
    """Sentences about overrides that are unused, or belong to a student by name alone.

    Each is there once, though it may hold for several entries. Raises BadDay where the exercises of
    the day cannot be imported, and BadFile where the course names one that is not there.
    """
    if not book.overrides.log:
        return []
    unused = UnusedOverrides(book, class_list)
    notices: list[str] = []
    students_by_reason: dict[str, list[str]] = {}
    for entry in book.overrides.entries_in_force().values():
        reason = unused.reason_unused(entry)
        if entry.item not in unused.items:
            students_by_reason.setdefault(reason, []).append(entry.student)
            doubt = ""
        elif reason and entry.item == LATE and entry.key in unused.owners:
            again = shlex.join(("dojo", "override", entry.student, "--late", entry.delay))
            doubt = (
                f"how late {entry.student} was had been decided by hand for another hand-in; what "
                f"the platform says of the one that counts holds now; to decide it again: {again} "
                f"--out {book.out}"
            )
        elif reason:
            doubt = f"{reason}; an override is unused"
        else:
            doubt = _doubt_about_owner(book, entry, unused.owners.get(entry.key))
        notice = f"{book.overrides.path}: {doubt}"
        if doubt and notice not in notices:
            notices.append(notice)
    for reason, students in students_by_reason.items():
        names = first_names(students, MOST_NAMES)
        notices.append(f"{book.overrides.path}: {reason}; points of {names} for it are unused")
    return notices


def _names_of_items(book: Gradebook) -> set[str]:
    """The names of all that a person can decide: exercises, checks, items by hand, lateness.

    Exercises that the course leaves out are not among them, nor are their checks. Raises BadDay
    where the exercises of the day cannot be imported, and BadFile where the course names one that
    is not there.
    """
    items = {LATE, REVIEW, REMOVED}
    for item in book.course.rows_by_hand:
        items.update((item.exercise, *item.rubric_lines))
    for exercise in exercises_of(book.state.day):
        if exercise.stem not in book.row_maker.graded_exercises:
            continue
        items.add(exercise.stem)
        for function in exercise.functions:
            for check in function.checks:
                items.add(f"{exercise.stem}::{function.name}::{check.name}")
    return items


def _doubt_about_owner(book: Gradebook, entry: LogEntry, owner: Participant | None) -> str:
    """A sentence about whose an override is; `owner` has its key. Empty where that is clear.

    There is a doubt where somebody has the key by the name alone.
    """
    if owner is None:
        return ""
    former_keys = book.former_keys.get(name_key(entry.student), ())
    if entry.key not in former_keys:
        return ""
    if owner.student is not None and owner.student.name == entry.student:
        # The name of what was handed in is the student's own; a name on the roster may be
        # another's.
        return ""
    former_id = entry.key.partition(":")[2]
    return (
        f"{owner.display_name!r} had another id on the roster before, {former_id!r}, "
        "and keeps the points given by hand"
    )
