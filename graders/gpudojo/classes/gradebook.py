"""Who has which row: students, the roster and groups in one list, and which submission counts."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpudojo.classes.class_state import ClassState, StoredSubmission, Student
from gpudojo.classes.course_rules import CourseRules
from gpudojo.classes.names import name_key
from gpudojo.classes.overrides import EVERYONE, Overrides
from gpudojo.classes.participants import (
    GroupWork,
    Participant,
    sort_by_time,
    with_unique_names,
)
from gpudojo.classes.roster import MatchedPeople, Roster
from gpudojo.classes.row_making import RowMaker
from gpudojo.model.results import AttemptRule, SubmissionRow, both_names
from gpudojo.submissions.names import fold_case, natural_key


@dataclass
class ClassList:
    """The participants who have a row, and what was noticed when they were listed."""

    participants: list[Participant] = field(default_factory=list)
    # Sentences for the teacher about the roster and groups.
    notices: list[str] = field(default_factory=list)
    # The names of those who handed in and are not on the roster.
    unmatched: list[str] = field(default_factory=list)


class Gradebook:
    """A class and its rules, and the rows that follow from both."""

    def __init__(
        self,
        out: Path,
        state: ClassState,
        course: CourseRules,
        roster: Roster | None,
        attempt: AttemptRule,
    ) -> None:
        """Read the overrides of the class. Raises BadFile where they cannot be read."""
        self.out = out
        self.state = state
        self.course = course
        self.roster = roster
        self.attempt = attempt
        self.overrides = Overrides(out)
        self.row_maker = RowMaker(out, state, course, self.overrides)

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
            points = functools.partial(self._points_to_publish, participant)
            return max(reversed(submissions), key=points)
        return submissions[-1]

    def _points_to_publish(self, participant: Participant, submission: StoredSubmission) -> float:
        """The points that a participant would have if this submission counted."""
        row = self.row_maker.row_for_submission(participant, submission)
        return row.final.points

    # Who has a row

    def list_class(self) -> ClassList:
        """List the participants who have a row, in the order of names.

        Members of a group have the same submissions. Nobody has a name that another one has.
        """
        class_list = ClassList()
        if self.roster is not None:
            class_list.notices += self.roster.notes
        self._list_students(class_list)
        # Members of a group share what was handed in.
        groups = GroupWork(
            class_list.participants,
            class_list.unmatched,
            self.roster is not None,
            functools.partial(self._notice_setting, class_list),
        )
        groups.share_submissions(self.course.groups)
        self._add_former_keys(class_list.participants)
        class_list.participants = with_unique_names(class_list.participants)
        return class_list

    def _list_students(self, class_list: ClassList) -> None:
        """Add those who handed in something, then those on the roster who handed in nothing.

        Several submissions may belong to one row of the roster, and several rows to one submission.
        """
        # Those who handed in.
        by_row: dict[int, Participant] = {}
        students = list(self.state.students.items())
        students.sort(key=lambda item: natural_key(item[1].name))
        for key, student in students:
            matched = self.match_on_roster(student)
            if not matched.rows:
                self._add_off_roster(class_list, key, student, matched.problem)
            for row in matched.rows:
                if row in by_row:
                    self._add_submissions(by_row[row], key, student)
                    continue
                participant = self._participant_on_roster(row, key, student, matched.rows)
                by_row[row] = participant
                class_list.participants.append(participant)
        # Those who did not.
        if self.roster is None:
            return
        for row in range(len(self.roster.rows)):
            if row not in by_row:
                name = self._name_on_roster(row)
                absent = self._absent_on_roster(row, name)
                class_list.participants.append(absent)

    def _notice_setting(self, class_list: ClassList, reason: str, *setting: str) -> None:
        """Note a setting of the course that is not used as it is written."""
        error = self.course.bad_setting(reason, *setting)
        class_list.notices.append(str(error))

    def participant_for(self, key: str, student: Student) -> Participant:
        """The participant for one student, without what others handed in for the same person."""
        rows = self.match_on_roster(student).rows
        if len(rows) == 1:
            participant = self._absent_on_roster(rows[0], student.name)
        else:
            participant = Participant(student.name, [], roster=student.listed)
        participant.take_submissions_of(key, student)
        participant.keys += self.former_keys.get(name_key(participant.name), ())
        return participant

    def match_on_roster(self, student: Student) -> MatchedPeople:
        """The rows of the roster of those who handed in; none where there is no roster."""
        if self.roster is None:
            return MatchedPeople([], "")
        names = (student.student, student.name)
        return self.roster.match_people(student.identifier, names, student.people)

    def name_of_people(self, student: Student) -> str:
        """The names on the roster, or on Gradescope's own list, of those who handed in."""
        rows = self.match_on_roster(student).rows
        names = [self._name_on_roster(row) for row in rows]
        return " & ".join(names) or student.listed_name

    def _name_on_roster(self, row: int) -> str:
        """The name in a row of the roster; without one, the id."""
        assert self.roster is not None
        person = self.roster.rows[row]
        return person.name or person.id

    def _add_off_roster(
        self, class_list: ClassList, key: str, student: Student, problem: str
    ) -> None:
        """Add a student who is not on the roster, or handed in where there is none.

        `problem` is a sentence about why nobody on the roster fits, for a person to review.
        """
        participant = Participant(student.name, [], roster=student.listed)
        if self.roster is not None:
            class_list.unmatched.append(both_names(student.listed_name, student.name))
        if problem:
            participant.review.append(f"{problem}.")
        participant.take_submissions_of(key, student)
        class_list.participants.append(participant)

    def _participant_on_roster(
        self, row: int, key: str, student: Student, rows: Sequence[int]
    ) -> Participant:
        """The participant for a row of the roster. `rows` are all that share the submission.

        Where several share it, they are a group.
        """
        if len(rows) == 1:
            participant = self._absent_on_roster(row, student.name)
        else:
            name = self._name_on_roster(row)
            participant = self._absent_on_roster(row, name)
            names = [person.name for person in student.people]
            participant.group = " & ".join(names)
        participant.take_submissions_of(key, student)
        return participant

    def _absent_on_roster(self, row: int, name: str) -> Participant:
        """The participant for a row of the roster, without submissions."""
        assert self.roster is not None
        person = self.roster.rows[row]
        return Participant(
            name,
            [_key_on_roster(person.id)],
            roster=person,
            submitted=self.roster.submitted.get(row, ""),
        )

    def _add_submissions(self, participant: Participant, key: str, student: Student) -> None:
        """Add what somebody on the roster handed in under another name.

        The submissions are sorted by time; where not all times are known, a person is to review
        them. If one of the new ones counts, the participant gets that name.
        """
        participant.keys.append(key)
        participant.submissions += student.sent
        if all(each.submitted for each in participant.submissions):
            sort_by_time(participant.submissions, lambda each: each.submitted)
        else:
            names = dict.fromkeys(each.name for each in participant.submissions)
            listed = ", ".join(names)
            reason = (
                f"several submissions match {participant.name}: {listed}; "
                "when each was handed in is not known."
            )
            participant.review = [reason]
        counted = self.counted_submission(participant)
        if any(counted is each for each in student.sent):
            participant.student = student
            participant.name = student.name

    @functools.cached_property
    def former_keys(self) -> dict[str, list[str]]:
        """By a student's name, keys of overrides by which nobody is known now.

        Such as where an address has changed.
        """
        known_keys = self._known_keys()
        former: dict[str, list[str]] = {}
        for entry in self.overrides.entries_in_force().values():
            if entry.key in known_keys:
                continue
            name = name_key(entry.student)
            keys = former.setdefault(name, [])
            if entry.key not in keys:
                keys.append(entry.key)
        return former

    def _known_keys(self) -> set[str]:
        """The keys of everybody who is in the class now, and the one that stands for all."""
        keys = {EVERYONE, *self.state.students}
        if self.roster is not None:
            for row in self.roster.rows:
                keys.add(_key_on_roster(row.id))
        for members in self.course.groups.values():
            for member in members:
                keys.add(f"plain:{fold_case(member)}")
        return keys

    def _add_former_keys(self, participants: Sequence[Participant]) -> None:
        """Give former keys to the only participant of that name, if there is one."""
        for name, keys in self.former_keys.items():
            matching = [each for each in participants if name in each.all_names]
            if len(matching) == 1:
                matching[0].keys += keys

    # Rows

    def row_of(self, participant: Participant) -> SubmissionRow:
        """The row of a participant, by the submission that counts."""
        counted = self.counted_submission(participant)
        return self.row_maker.make_row(participant, counted)

    def rows_of(self, participants: Sequence[Participant]) -> Iterator[SubmissionRow]:
        """Make the rows of participants, one after another, for there may be many.

        Each row says which others of them handed in the same.
        """
        counted: dict[Participant, StoredSubmission | None] = {}
        by_content: dict[str, list[Participant]] = defaultdict(list)
        for participant in participants:
            submission = self.counted_submission(participant)
            counted[participant] = submission
            if submission is not None:
                by_content[submission.content].append(participant)
        for participant, submission in counted.items():
            twins: list[str] = []
            if submission is not None:
                same = by_content[submission.content]
                twins = _names_of_twins(participant, same)
            yield self.row_maker.make_row(participant, submission, twins)


def _key_on_roster(id_: str) -> str:
    """The key of somebody on the roster, by which overrides know the person."""
    return f"roster:{name_key(id_)}"


def _names_of_twins(participant: Participant, same: Sequence[Participant]) -> list[str]:
    """Those outside of the participant's group who handed in the same."""
    names = []
    for other in same:
        one_group = participant.group and other.group == participant.group
        if other is not participant and not one_group:
            names.append(other.full_name)
    return names
