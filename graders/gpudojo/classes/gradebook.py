"""Who has which row: students, the roster and groups in one list, and which submission counts."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpudojo.classes.class_state import ClassState, StoredSubmission, Student
from gpudojo.classes.course_rules import CourseRules
from gpudojo.classes.names import name_key
from gpudojo.classes.overrides import EVERYONE, LogEntry, Overrides
from gpudojo.classes.participants import (
    GroupWork,
    Participant,
    describe_namesakes,
    sort_by_time,
    with_unique_names,
)
from gpudojo.classes.roster import MatchedPeople, Roster
from gpudojo.classes.row_making import RowMaker
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import suggest_name
from gpudojo.model.results import AttemptRule, SubmissionRow, both_names
from gpudojo.submissions.names import fold_case, natural_key


class Gradebook:
    """A class and its rules, and the rows that follow from both.

    `list_participants` and `make_rows` set anew: `notices`, sentences for the teacher about settings and
    files, and `unmatched`, the names of those who handed in and are not on the roster.
    """

    def __init__(
        self,
        out: Path,
        state: ClassState,
        course: CourseRules,
        roster: Roster | None,
        attempt: AttemptRule,
    ) -> None:
        self.out = out
        self.state = state
        self.course = course
        self.roster = roster
        self.attempt = attempt
        self.overrides = Overrides(out)
        self.row_maker = RowMaker(out, state, course, self.overrides)
        self.notices: list[str] = []
        self.unmatched: list[str] = []

    # Which submission counts

    def counted_submission(self, participant: Participant) -> StoredSubmission | None:
        """The submission that counts. Returns None where there is none.

        The best has the most points to publish; of several such, the latest counts.
        """
        submissions = participant.submissions
        if not submissions:
            return None
        if self.attempt == "first":
            return submissions[0]
        if self.attempt == "best" and len(submissions) > 1:
            return max(
                reversed(submissions), key=functools.partial(self._points_to_publish, participant)
            )
        return submissions[-1]

    def _points_to_publish(self, participant: Participant, submission: StoredSubmission) -> float:
        return self.row_maker.row_for_submission(participant, submission).final.points

    # Who has a row

    def list_participants(self) -> list[Participant]:
        """The participants who have a row, in the order of names.

        Fills `notices` and `unmatched` anew.
        """
        self.notices = list(self.roster.notes) if self.roster else []
        self.unmatched = []
        participants: list[Participant] = []
        by_row: dict[int, Participant] = {}
        # Those who handed in something. Several submissions may belong to one row of the roster.
        students = sorted(self.state.students.items(), key=lambda item: natural_key(item[1].name))
        for key, student in students:
            matched = self.match_on_roster(student)
            if not matched.rows:
                participants.append(self._participant_off_roster(key, student, matched.problem))
            for row in matched.rows:
                if row in by_row:
                    self._add_submissions(by_row[row], key, student)
                else:
                    by_row[row] = self._participant_on_roster(row, key, student, matched.rows)
                    participants.append(by_row[row])
        # Those on the roster who handed in nothing.
        if self.roster is not None:
            for row in range(len(self.roster.rows)):
                if row not in by_row:
                    participants.append(self._absent_on_roster(row, self._name_on_roster(row)))
        # Members of a group share what was handed in.
        groups = GroupWork(
            participants, self.unmatched, self.roster is not None, self._notice_setting
        )
        groups.share_submissions(self.course.groups)
        self._add_former_keys(participants)
        return with_unique_names(participants)

    def participant_for(self, key: str, student: Student) -> Participant:
        """The participant for one student, without what others handed in for the same person."""
        matched = self.match_on_roster(student)
        if len(matched.rows) == 1:
            participant = self._absent_on_roster(matched.rows[0], student.name)
        else:
            participant = Participant(student.name, [], roster=student.listed)
        participant.take_submissions_of(key, student)
        participant.keys += self._former_keys.get(name_key(participant.name), ())
        return participant

    def match_on_roster(self, student: Student) -> MatchedPeople:
        """The rows of the roster of those who handed in; none where there is no roster."""
        if self.roster is None:
            return MatchedPeople([], "")
        names = (student.student, student.name)
        return self.roster.match_people(student.identifier, names, student.people)

    def name_of_people(self, student: Student) -> str:
        """The names on the roster, or on Gradescope's own list, of those who handed in."""
        names = [self._name_on_roster(row) for row in self.match_on_roster(student).rows]
        return " & ".join(names) or student.listed_name

    def _name_on_roster(self, row: int) -> str:
        assert self.roster is not None
        return self.roster.rows[row].name or self.roster.rows[row].id

    def _participant_off_roster(self, key: str, student: Student, problem: str) -> Participant:
        """The participant for a student who is not on the roster, or where there is none."""
        if self.roster is not None:
            self.unmatched.append(both_names(student.listed_name, student.name))
        review = [f"{problem}."] if problem else []
        participant = Participant(student.name, [], roster=student.listed, review=review)
        participant.take_submissions_of(key, student)
        return participant

    def _participant_on_roster(
        self, row: int, key: str, student: Student, rows: Sequence[int]
    ) -> Participant:
        """The participant for a row of the roster. `rows` are all that share the submission."""
        several = len(rows) > 1
        name = self._name_on_roster(row) if several else student.name
        participant = self._absent_on_roster(row, name)
        participant.take_submissions_of(key, student)
        if several:
            participant.group = " & ".join(person.name for person in student.people)
        return participant

    def _absent_on_roster(self, row: int, name: str) -> Participant:
        """The participant for a row of the roster, without submissions."""
        assert self.roster is not None
        person = self.roster.rows[row]
        submitted = self.roster.submitted.get(row, "")
        keys = [f"roster:{name_key(person.id)}"]
        return Participant(name, keys, roster=person, submitted=submitted)

    def _add_submissions(self, participant: Participant, key: str, student: Student) -> None:
        """Add what somebody on the roster handed in under another name."""
        participant.keys.append(key)
        participant.submissions += student.sent
        if all(each.submitted for each in participant.submissions):
            sort_by_time(participant.submissions, lambda each: each.submitted)
        else:
            names = ", ".join(dict.fromkeys(each.name for each in participant.submissions))
            reason = (
                f"several submissions match {participant.name}: {names}; "
                "when each was handed in is not known."
            )
            participant.review = [reason]
        counted = self.counted_submission(participant)
        if any(counted is each for each in student.sent):
            participant.student = student
            participant.name = student.name

    @functools.cached_property
    def _former_keys(self) -> dict[str, list[str]]:
        """By a student's name, keys of overrides by which nobody is known now.

        Such as where an address has changed.
        """
        known = {EVERYONE, *self.state.students}
        if self.roster is not None:
            known |= {f"roster:{name_key(row.id)}" for row in self.roster.rows}
        for members in self.course.groups.values():
            known |= {f"plain:{fold_case(member)}" for member in members}
        former: dict[str, list[str]] = {}
        for entry in self.overrides.entries_in_force().values():
            if entry.key not in known:
                keys = former.setdefault(name_key(entry.student), [])
                if entry.key not in keys:
                    keys.append(entry.key)
        return former

    def _add_former_keys(self, participants: Sequence[Participant]) -> None:
        """Give former keys to the only participant of that name, if there is one."""
        for name, keys in self._former_keys.items():
            matching = [each for each in participants if name in each.all_names]
            if len(matching) == 1:
                matching[0].keys += keys

    # Rows

    def row_of(self, participant: Participant) -> SubmissionRow:
        """The row of a participant."""
        return self.row_maker.make_row(participant, self.counted_submission(participant))

    def make_rows(self) -> Iterator[SubmissionRow]:
        """All rows, finished; one after another, for there may be many.

        `notices` and `unmatched` are set when this returns, before the first row is made.
        """
        participants = self.list_participants()
        self._notice_extensions(participants)
        self._notice_overrides(participants)
        return self._rows_of(participants)

    def _rows_of(self, participants: Sequence[Participant]) -> Iterator[SubmissionRow]:
        """The rows of these participants. Each says who else handed in the same."""
        counted = {each: self.counted_submission(each) for each in participants}
        by_content: dict[str, list[Participant]] = defaultdict(list)
        for participant, submission in counted.items():
            if submission is not None:
                by_content[submission.content].append(participant)
        for participant, submission in counted.items():
            twins: list[str] = []
            if submission is not None:
                same = by_content[submission.content]
                twins = _names_of_twins(participant, same)
            yield self.row_maker.make_row(participant, submission, twins)

    # What the teacher should know

    def _notice_setting(self, reason: str, *setting: str) -> None:
        """Note a setting of the course that is not used as it is written."""
        self.notices.append(str(self.course.bad_setting(reason, *setting)))

    def _notice_extensions(self, participants: Sequence[Participant]) -> None:
        """Note extensions of nobody, of several, of one by two names, and useless ones."""
        extension_of: dict[Participant, str] = {}
        for who in self.course.extensions:
            matching = [each for each in participants if name_key(who) in each.all_names]
            if not matching:
                names = []
                for each in participants:
                    names += [each.name, each.display_name]
                hint = suggest_name(who, names, "")
                self._notice_setting(f"nobody is called {who!r}{hint}", "extensions", who)
            if len(matching) > 1:
                namesakes = describe_namesakes(who, matching)
                reason = f"{namesakes}; all of them have the extension"
                self._notice_setting(reason, "extensions", who)
            for participant in matching:
                other = extension_of.setdefault(participant, who)
                if other != who:
                    reason = f"{who!r} is {other!r}, whose extension is used"
                    self._notice_setting(reason, "extensions", who)
        for who, sentence in self.course.useless_extensions():
            self._notice_setting(sentence, "extensions", who)

    def _notice_overrides(self, participants: Sequence[Participant]) -> None:
        """Note overrides that are unused, or belong to a student by name alone."""
        if not self.overrides.log:
            return
        items = self._names_of_items()
        owners = {}
        for participant in participants:
            for key in participant.keys:
                owners[key] = participant
        sentences = []
        for entry in self.overrides.entries_in_force().values():
            sentence = self._doubt_about_override(entry, items, owners.get(entry.key))
            if sentence:
                sentences.append(f"{self.overrides.path}: {sentence}")
        self.notices += dict.fromkeys(sentences)

    def _names_of_items(self) -> set[str]:
        """The names of all that can be overridden: exercises, checks and items by hand."""
        items = {item.name for item in self.course.by_hand}
        for exercise in exercises_of(self.state.day):
            if exercise.stem not in self.row_maker.graded_exercises:
                continue
            items.add(exercise.stem)
            for function in exercise.functions:
                for check in function.checks:
                    items.add(f"{exercise.stem}::{function.name}::{check.name}")
        return items

    def _doubt_about_override(
        self, entry: LogEntry, items: set[str], owner: Participant | None
    ) -> str:
        """A sentence about an override that is not used as it was given. Empty for most."""
        if entry.item not in items:
            return (
                f"{entry.item} is not graded any more; points of {entry.student} for it are unused"
            )
        if entry.key == EVERYONE:
            return ""
        if owner is None:
            return f"nobody is {entry.student!r} any more; an override is unused"
        if entry.key not in self._former_keys.get(name_key(entry.student), ()):
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


def _names_of_twins(participant: Participant, same: Sequence[Participant]) -> list[str]:
    """Those outside of the participant's group who handed in the same."""
    names = []
    for other in same:
        one_group = participant.group and other.group == participant.group
        if other is not participant and not one_group:
            names.append(other.full_name)
    return names
