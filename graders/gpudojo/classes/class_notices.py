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
    """Sentences about extensions and overrides, each with its file."""
    return _notices_about_extensions(book, participants) + _notices_about_overrides(
        book, participants
    )


# Extensions


def _notices_about_extensions(book: Gradebook, participants: Sequence[Participant]) -> list[str]:
    """Sentences about extensions of nobody, of several, of one by two names, and useless ones."""
    notices = []
    extension_of: dict[Participant, str] = {}
    for who in book.course.extensions:
        matching = [each for each in participants if name_key(who) in each.all_names]
        if len(matching) != 1:
            reason = _not_one_student(who, matching, participants)
            notices.append(_notice_of_extension(book, who, reason))
        for participant in matching:
            other = extension_of.setdefault(participant, who)
            if other != who:
                reason = f"{who!r} is {other!r}, whose extension is used"
                notices.append(_notice_of_extension(book, who, reason))
    for who, sentence in book.course.useless_extensions():
        notices.append(_notice_of_extension(book, who, sentence))
    return notices


def _not_one_student(
    who: str, matching: Sequence[Participant], participants: Sequence[Participant]
) -> str:
    """What to say of a name that nobody has, or several have."""
    if matching:
        return f"{describe_namesakes(who, matching)}; all of them have the extension"
    names = []
    for each in participants:
        names += [each.name, each.display_name]
    return f"nobody is called {who!r}{suggest_name(who, names, '')}"


def _notice_of_extension(book: Gradebook, who: str, reason: str) -> str:
    """The reason, with the line of somebody's extension in the course file."""
    return str(book.course.bad_setting(reason, "extensions", who))


# Overrides


def _notices_about_overrides(book: Gradebook, participants: Sequence[Participant]) -> list[str]:
    """Sentences about overrides that are unused, or belong to a student by name alone."""
    if not book.overrides.log:
        return []
    items = _names_of_items(book)
    owners = {}
    for participant in participants:
        for key in participant.keys:
            owners[key] = participant
    notices = []
    for entry in book.overrides.entries_in_force().values():
        doubt = _doubt_about_override(book, entry, items, owners.get(entry.key))
        if doubt:
            notices.append(f"{book.overrides.path}: {doubt}")
    return list(dict.fromkeys(notices))


def _names_of_items(book: Gradebook) -> set[str]:
    """The names of all that can be overridden: exercises, checks and items by hand."""
    items = {item.name for item in book.course.by_hand}
    for exercise in exercises_of(book.state.day):
        if exercise.stem not in book.row_maker.graded_exercises:
            continue
        items.add(exercise.stem)
        for function in exercise.functions:
            for check in function.checks:
                items.add(f"{exercise.stem}::{function.name}::{check.name}")
    return items


def _doubt_about_override(
    book: Gradebook, entry: LogEntry, items: set[str], owner: Participant | None
) -> str:
    """A sentence about an override that is not used as it was given. Empty for most."""
    if entry.item not in items:
        return f"{entry.item} is not graded any more; points of {entry.student} for it are unused"
    if entry.key == EVERYONE:
        return ""
    if owner is None:
        return f"nobody is {entry.student!r} any more; an override is unused"
    if entry.key not in book.former_keys.get(name_key(entry.student), ()):
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
