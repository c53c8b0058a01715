"""`dojo status`."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpudojo.cli.class_folder import class_folder
from gpudojo.cli.options import EXISTING_PATH, find_results_file
from gpudojo.cli.single_options import StrictCommand
from gpudojo.model.errors import printable_text
from gpudojo.model.results_file import count_and_noun, format_points

if TYPE_CHECKING:
    from gpudojo.classes.class_status import ChangedPoints, ClassStatus, Named, Written

NAMES_SHOWN: Final = 8  # of each list; --all shows all
REASON_LENGTH: Final = 70
WIDTH: Final = 100
INDENT: Final = " " * 22
UNDATED: Final = (
    "These are not counted as late. A table with dates as another `roster` tells when each was "
    "handed in, such as Moodle's grading worksheet; or: dojo override STUDENT --late TIME"
)

DECIDED_BEFORE: Final = (
    "how late it was had been decided for another hand-in, and what the platform says counts now; "
    "to decide it again"
)


@click.command(cls=StrictCommand)
@click.argument("results", type=EXISTING_PATH, required=False)
@click.option("--all", "show_all", is_flag=True, help="Show all names, not only the first.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def status(results: Path | None, show_all: bool, as_json: bool) -> None:
    """Show where a class stands: who is graded, late, absent, to review, to mark by hand, and who
    has changed since the last export.

    RESULTS is a results.json of `dojo grade` or its folder (default: this folder, or the only one
    in it).
    """
    from gpudojo.classes.class_status import status_of_class

    found = status_of_class(find_results_file(results or class_folder(None)))
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    most = None
    if not show_all:
        most = NAMES_SHOWN
    _StatusPrinter(found, most).print_all()


class _StatusPrinter:
    """Prints where a class stands, on one screen."""

    def __init__(self, found: ClassStatus, most: int | None) -> None:
        """`most` names of each list are shown; None for all."""
        self.found = found
        self.most = most
        self.width = WIDTH
        self.folder = Path(found.results).parent

    def print_all(self) -> None:
        """Print all lists, each with its names."""
        found = self.found
        graded_at = found.graded_at[:16].replace("T", " ")
        students = count_and_noun(found.students, "student")
        self._print(f"{found.title}: {students}, graded {graded_at} UTC")
        for sentence in found.unusual_rules:
            self._print(sentence)
        self._print("")
        self._print_graded()
        self._print_list("late", len(found.late), map(_describe_late, found.late))
        if found.undated:
            self._print_list("time unknown", len(found.undated), _names_of(found.undated))
            self._print_entry(None, "", UNDATED)
        for each in found.to_decide_again:
            assert each.timing is not None
            self._print_entry(
                None, "", f"{each.name}: {DECIDED_BEFORE}: {each.timing.decide_again}"
            )
        self._print_list("absent", len(found.absent), _names_of(found.absent))
        self._print_lines("to review", found.to_review, "dojo review")
        if found.reviewed:
            self._print_list("reviewed", len(found.reviewed), map(_name_with_group, found.reviewed))
        self._print_to_mark()
        self._print_written()

    def _print_graded(self) -> None:
        """Print how many are graded, how many are not, and with --all who is graded."""
        others = []
        for status, count in sorted(self.found.statuses.items()):
            if status not in ("graded", "absent"):
                others.append(f"{count} {status}")
        graded = self.found.graded
        self._print_list("graded", len(graded), others)
        if self.most is None:
            names = ", ".join(_names_of(graded))
            self._print_entry(None, "", names)

    def _print_to_mark(self) -> None:
        """Print who is still to be marked, together those of whom the same items are."""
        names_by_items: dict[str, list[str]] = {}
        for each in self.found.to_mark:
            items = ", ".join(each.items)
            names_by_items.setdefault(items, []).append(each.name)
        for items, names in names_by_items.items():
            self._print_list("to mark by hand", len(names), names, f"{items}: ")
        if not names_by_items:
            self._print_list("to mark by hand", 0, ())

    def _print_list(self, label: str, count: int, names: Iterable[str], title: str = "") -> None:
        """Print a count, its label, and a title and names behind it, on the lines they need."""
        shown = list(names)
        more = 0
        if self.most is not None:
            more = len(shown) - self.most
            shown = shown[: self.most]
        text = title + ", ".join(shown)
        if more > 0:
            text += f", … and {more} more"
        self._print_entry(count, label, text)

    def _print_lines(self, label: str, students: Sequence[Named], command: str) -> None:
        """Print a count and its label, and a line for each student with the first reason."""
        if not students:
            self._print_entry(0, label, "")
            return
        lines = [_describe_reason(each) for each in students[: self.most]]
        more = len(students) - len(lines)
        if more:
            lines.append(f"… and {more} more: {command} --out {self.folder}")
        first, *rest = lines
        self._print_entry(len(students), label, first)
        for line in rest:
            self._print(f"{INDENT}{line}")

    def _print_written(self) -> None:
        """Print since when exports and pages are, and whose results have changed meanwhile.

        Pages that are as they should be are left out, and what was written again later, to another
        folder.
        """
        in_use = [each for each in self.found.written if each.in_use]
        exports = [each for each in in_use if each.command.startswith("export")]
        if not exports:
            self._print("\nNothing was exported yet.")
        for output in in_use:
            if output.changed or output in exports:
                self._print_output(output)

    def _print_output(self, output: Written) -> None:
        """Print one export or set of pages, and those who have changed since."""
        kind, _, format_ = output.command.partition(" --to ")
        name = f"{kind} {format_}".strip()
        at = output.at[:16].replace("T", " ")
        changed = [_describe_changed(each) for each in output.changed]
        self._print("")
        others = sum(map(_has_other_points, output.changed))
        folder = os.path.normpath(self.folder / output.folder)
        label = f"changed since the {name} of {at} UTC to {folder}"
        if others < len(changed):
            label += f", {others} with other points"
        self._print_list(label, len(changed), changed)
        if changed:
            self._print(f"{INDENT}again: {output.again}")

    def _print_entry(self, count: int | None, label: str, text: str) -> None:
        """Print a line with a count and a label, if any; the text stands behind or below it."""
        head = ""
        if count is not None:
            head = f"{count:>5} {label}"
        if len(head) > 21:
            self._print(head)
            first = INDENT
        else:
            first = f"{head:<22}"
        if not text:
            if first != INDENT:
                self._print(head)
            return
        rest = " " * len(first)
        for line in textwrap.wrap(text, self.width, initial_indent=first, subsequent_indent=rest):
            self._print(line)

    def _print(self, text: str) -> None:
        """Print a text, in which names can do nothing to the terminal."""
        click.echo(printable_text(text, keep="\n"))


def _names_of(students: Iterable[Named]) -> list[str]:
    """The names of students, without their groups."""
    return [student.name for student in students]


def _name_with_group(student: Named) -> str:
    """The name of a student, and of the group, all of whose members are meant."""
    if not student.group:
        return student.name
    return f"{student.name} ({student.group})"


def _describe_reason(student: Named) -> str:
    """The name of a student, and the first reason why somebody should look."""
    reason = textwrap.shorten(student.reasons[0], REASON_LENGTH, placeholder=" …")
    return f"{_name_with_group(student)}: {reason}"


def _describe_late(student: Named) -> str:
    """The name of a student, how late it was, and what that costs."""
    from gpudojo.platforms._texts import describe_delay

    text = student.name
    if student.timing is None:
        return text
    parts = [describe_delay(student.timing)]
    if student.timing.penalty:
        parts.append(f"−{format_points(student.timing.penalty)}")
    told = ", ".join(filter(None, parts))
    if told:
        text += f" ({told})"
    return text


def _has_other_points(changed: ChangedPoints) -> bool:
    """True if the points or their maximum are others, as they are shown and the history counts."""
    before = changed.before
    after = changed.after
    if before is None or after is None:
        return True
    if format_points(before.points) != format_points(after.points):
        return True
    return format_points(before.max_points) != format_points(after.max_points)


def _describe_changed(changed: ChangedPoints) -> str:
    """The name of a student, with the points before and after.

    What the points are out of is told where that changed.
    """
    if changed.after is None:
        return f"{changed.name} (not in the class any more)"
    after = format_points(changed.after.points)
    if changed.before is None:
        return f"{changed.name} (new: {after})"
    before = format_points(changed.before.points)
    if not _has_other_points(changed):
        return f"{changed.name} ({after}, other checks or comments)"
    if changed.before.max_points != changed.after.max_points:
        before += f" of {format_points(changed.before.max_points)}"
        after += f" of {format_points(changed.after.max_points)}"
    return f"{changed.name} ({before} → {after})"
