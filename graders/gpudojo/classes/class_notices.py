"""What a teacher should know of a class: extensions and overrides that are not used as written."""

from __future__ import annotations

from collections.abc import Sequence

from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.names import name_key
from gpudojo.classes.overrides import EVERYONE, LogEntry
from gpudojo.classes.participants import Participant, describe_namesakes
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import suggest_name


def notices_about_class(book: Gradebook, participants: Sequence[Participant]) -> list[str]:
    """Sentences about extensions and overrides, each with its file.

    None for an extension that somebody has, or an override that is used.
    """
    extensions = _ExtensionNotices(book, participants)
    extensions.note_all()
    overrides = _notices_about_overrides(book, participants)
    return extensions.notices + overrides


# Extensions


class _ExtensionNotices:
    """Collects sentences about extensions, each with its line in the course file."""

    def __init__(self, book: Gradebook, participants: Sequence[Participant]) -> None:
        self.course = book.course
        self.participants = participants
        self.notices: list[str] = []

    def note_all(self) -> None:
        """Note extensions of nobody, of several, of one by two names, and useless ones.

        Each is a sentence in `notices`.
        """
        extension_of: dict[Participant, str] = {}
        for name in self.course.extensions:
            key = name_key(name)
            matching = []
            for participant in self.participants:
                if key in participant.all_names:
                    matching.append(participant)
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
        names = []
        for each in self.participants:
            names.append(each.name)
            names.append(each.display_name)
        hint = suggest_name(name, names, "")
        self._add_notice(name, f"nobody is called {name!r}{hint}")

    def _add_notice(self, name: str, reason: str) -> None:
        """Add a sentence about the extension of somebody."""
        error = self.course.bad_setting(reason, "extensions", name)
        self.notices.append(str(error))


# Overrides


def _notices_about_overrides(book: Gradebook, participants: Sequence[Participant]) -> list[str]:
    """Sentences about overrides that are unused, or belong to a student by name alone.

    Each is there once, though it may hold for several entries.
    """
    if not book.overrides.log:
        return []
    items = _names_of_items(book)
    owners = {}
    for participant in participants:
        for key in participant.keys:
            owners[key] = participant
    notices: list[str] = []
    for entry in book.overrides.entries_in_force().values():
        if entry.item in items:
            owner = owners.get(entry.key)
            doubt = _doubt_about_owner(book, entry, owner)
        else:
            unused = f"points of {entry.student} for it are unused"
            doubt = f"{entry.item} is not graded any more; {unused}"
        notice = f"{book.overrides.path}: {doubt}"
        if doubt and notice not in notices:
            notices.append(notice)
    return notices


def _names_of_items(book: Gradebook) -> set[str]:
    """The names of all that can be overridden: exercises, checks and items by hand.

    Exercises that the course leaves out are not among them, nor are their checks.
    """
    items = {item.name for item in book.course.by_hand}
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

    There is a doubt where nobody has the key any more, or somebody has it by the name alone.
    """
    if entry.key == EVERYONE:
        return ""
    if owner is None:
        return f"nobody is {entry.student!r} any more; an override is unused"
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
