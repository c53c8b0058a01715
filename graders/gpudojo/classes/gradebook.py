"""Who has which row: students, the roster and groups in one list, and which submission counts."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpudojo.classes.class_state import ClassState, StoredSubmission, Student
from gpudojo.classes.course_rules import CourseRules
from gpudojo.classes.hand_in_dates import HandInDates
from gpudojo.classes.names import name_key
from gpudojo.classes.overrides import EVERYONE, REMOVED, Overrides
from gpudojo.classes.participants import (
    GroupWork,
    Participant,
    find_participants,
    sort_by_time,
    with_unique_names,
)
from gpudojo.classes.roster import MatchedPeople, Roster
from gpudojo.classes.row_making import RowMaker
from gpudojo.model.results import AttemptRule, SubmissionRow, both_names
from gpudojo.submissions.entries import Naming
from gpudojo.submissions.names import fold_case, natural_key


@dataclass
class ClassList:
    """The participants who have a row, and what was noticed when they were listed."""

    participants: list[Participant] = field(default_factory=list)
    # Sentences for the teacher about the roster and groups.
    notices: list[str] = field(default_factory=list)
    # The names of those who handed in and are not on the roster.
    unmatched: list[str] = field(default_factory=list)
    removed: list[Participant] = field(default_factory=list)  # by hand: they have no row


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
        self.dates = HandInDates(course.zone)
        self.overrides = Overrides(out, course.rows_by_hand)
        self.row_maker = RowMaker(out, state, course, self.overrides)

    # Which submission counts

    def counted_submission(self, participant: Participant) -> StoredSubmission | None:
        """The submission that counts by the rule `attempt`: first, best or latest; else None.

        The best has the most points to publish; of several such, the latest counts. To find it,
        rows are made, and verdicts that are missing are made and written: that raises BadClass
        where the reference's record cannot be read, and BadFile, BadDay or OSError.
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
        """The points that a participant would have if this submission counted.

        Where it has no verdict, one is made and written. Raises BadClass where the reference's
        record cannot be read for that, and OSError where the verdict cannot be written. Raises
        BadDay where the day cannot be imported, and BadFile where the course names an exercise that
        is not there.
        """
        row = self.row_maker.row_for_submission(participant, submission)
        return row.final.points

    # Who has a row

    def list_class(self) -> ClassList:
        """List the participants who have a row, in the order of names.

        Members of a group have the same submissions. Nobody has a name that another one has. What a
        teacher should know is in the notices. Where the best attempt counts, rows may be made:
        raises BadClass, BadFile, BadDay or OSError as far as that is not possible.
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
            self.dates,
            functools.partial(self._notice_setting, class_list),
        )
        groups.share_submissions(self.course.groups)
        for group, members in _groups_of_moodle(class_list.participants).items():
            groups.share_within(group, members)
        self._review_unknown_orders(class_list.participants)
        self._add_former_keys(class_list.participants)
        class_list.participants = with_unique_names(class_list.participants)
        for who in self.course.extensions:
            for participant in find_participants(who, class_list.participants):
                participant.extended_as.add(name_key(who))
        self._take_out_removed(class_list)
        return class_list

    def _review_unknown_orders(self, participants: Sequence[Participant]) -> None:
        """Let a person review those of whom it is not known which submission is the latest.

        Where the best counts, the order does not matter. A reason is added to `review` of these.
        """
        if self.attempt == "best":
            return
        taken = "graded last is taken for the latest"
        if self.attempt == "first":
            taken = "graded first is taken for the first"
        for participant in participants:
            if participant.unknown_order:
                participant.review.append(
                    f"{participant.unknown_order}; when each was handed in is not known, so what "
                    f"was {taken}."
                )

    def _take_out_removed(self, class_list: ClassList) -> None:
        """Move those whom a person removed to a list of their own."""
        left = []
        for participant in class_list.participants:
            if REMOVED not in self.overrides.entries_for(participant.keys, everyone=False):
                left.append(participant)
                continue
            class_list.removed.append(participant)
            if participant.full_name in class_list.unmatched:
                class_list.unmatched.remove(participant.full_name)
        class_list.participants = left

    def _list_students(self, class_list: ClassList) -> None:
        """Add to `class_list` those who handed in, then those on the roster who handed in nothing.

        Several submissions may belong to one row of the roster, and several rows to one submission.
        Names off the roster are added to the unmatched. Raises BadClass, BadFile, BadDay or OSError
        where the best attempt counts and rows cannot be made.
        """
        # Those who handed in.
        by_row: dict[int, Participant] = {}
        students = list(self.state.students.items())
        students.sort(key=lambda item: natural_key(item[1].name))
        for key, student in students:
            matched = self.match_on_roster(student)
            if not matched.rows:
                self._add_off_roster(class_list, key, student, matched)
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
        """Add to the notices why a setting of the course is not used as it is written.

        `setting` are the keys that lead to it in the course file.
        """
        error = self.course.bad_setting(reason, *setting)
        class_list.notices.append(str(error))

    def match_on_roster(self, student: Student) -> MatchedPeople:
        """The indices of the roster's rows of those who handed in, and a problem in words, if any.

        Both are empty where there is no roster.
        """
        if self.roster is None:
            return MatchedPeople([], "")
        names = (student.student, student.name)
        return self.roster.match_people(student.identifier, names, student.people)

    def _name_on_roster(self, row: int) -> str:
        """The name in a row of the roster; without one, the id."""
        assert self.roster is not None
        person = self.roster.rows[row]
        return person.name or person.id

    def _add_off_roster(
        self, class_list: ClassList, key: str, student: Student, matched: MatchedPeople
    ) -> None:
        """Add a student who is not on the roster, or handed in where there is none.

        `matched` says why nobody on the roster fits, for a person to review. If there is a roster,
        and nobody on it may be meant, the name is put among the unmatched, too.
        """
        participant = Participant(student.name, [], roster=student.listed)
        if self.roster is not None and not matched.is_ambiguous:
            class_list.unmatched.append(both_names(student.listed_name, student.name))
        if matched.problem:
            participant.review.append(f"{matched.problem}.")
        self._take_submissions(participant, key, student)
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
        self._take_submissions(participant, key, student)
        return participant

    def _take_submissions(self, participant: Participant, key: str, student: Student) -> None:
        """Let a participant become the one for a student, whose submissions get their dates."""
        participant.take_submissions_of(key, student)
        sent = participant.sent_submissions(self.dates.given)
        participant.dates = self.dates.find(sent)

    def _absent_on_roster(self, row: int, name: str) -> Participant:
        """A new participant of this name for a row of the roster, without submissions."""
        assert self.roster is not None
        person = self.roster.rows[row]
        return Participant(
            name,
            [_key_on_roster(person.id)],
            roster=person,
            roster_date=self.roster.dates.get(row),
            earlier_roster_dates=list(self.roster.earlier_dates.get(row, ())),
        )

    def _add_submissions(self, participant: Participant, key: str, student: Student) -> None:
        """Add what somebody on the roster handed in under another name.

        The submissions are sorted by time; where not all times are known, by when they were graded,
        and `unknown_order` says so. If one of the new ones counts, the participant gets that
        name. Where the best counts, rows are made for that: raises BadClass, BadFile, BadDay or
        OSError where they cannot be.
        """
        participant.keys.append(key)
        participant.more_names += [student.name, student.student, student.identifier or ""]
        participant.submissions += student.sent
        has_id = participant.student is not None and participant.student.identifier
        if student.identifier and not has_id:
            participant.identified = student
        if all(each.submitted for each in participant.submissions):
            sort_by_time(participant.submissions, lambda each: each.submitted)
        else:
            participant.submissions.sort(key=lambda each: each.order)
            names = dict.fromkeys(Path(each.origin).name for each in participant.submissions)
            listed = ", ".join(names)
            participant.unknown_order = f"handed in under several names: {listed}"
        sent = participant.sent_submissions(self.dates.given)
        participant.dates = self.dates.find(sent)
        counted = self.counted_submission(participant)
        if any(counted is each for each in student.sent):
            if participant.student is not None and participant.student.identifier:
                participant.identified = participant.student
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
        """Give former keys to the only participant of that name, if there is one.

        They are added to the participant's `keys`.
        """
        for name, keys in self.former_keys.items():
            matching = [each for each in participants if name in each.names.keys]
            if len(matching) == 1:
                matching[0].keys += keys

    # Rows

    def row_of(self, participant: Participant) -> SubmissionRow:
        """The row of a participant, by the submission that counts.

        Where it has no verdict, one is made and written. Raises BadClass where the reference's
        record cannot be read for that, and OSError where the verdict cannot be written. Raises
        BadDay where the day cannot be imported, and BadFile where the course names an exercise that
        is not there.
        """
        counted = self.counted_submission(participant)
        return self.row_maker.make_row(participant, counted)

    def rows_of(self, participants: Sequence[Participant]) -> Iterator[SubmissionRow]:
        """Yield the rows of participants, one after another, for there may be many.

        Each row says which others of them handed in the same, now or earlier. Where a verdict is
        missing, it is made and written. Raises BadClass where the reference's record cannot be read
        for that, and OSError where the verdict cannot be written. Raises BadDay where the day
        cannot be imported, and BadFile where the course names an exercise that is not there.
        """
        counted: dict[Participant, StoredSubmission | None] = {}
        # By content, who handed it in, with what each is called there.
        senders: dict[str, dict[Participant, str]] = defaultdict(dict)
        for participant in participants:
            submission = self.counted_submission(participant)
            counted[participant] = submission
            for each in participant.submissions:
                name = participant.full_name
                if submission is not None and each is not submission:
                    name = f"{participant.which_attempt(each, submission)} of {name}"
                if each is submission or participant not in senders[each.content]:
                    senders[each.content][participant] = name
        for participant, submission in counted.items():
            twins = {}
            for each in participant.submissions:
                twins[each.content] = _names_of_twins(participant, senders[each.content])
            yield self.row_maker.make_row(participant, submission, twins)


def _groups_of_moodle(participants: Sequence[Participant]) -> dict[str, list[Participant]]:
    """By name, the groups that handed in together on Moodle, as the names of their folders tell.

    There each member has a folder, "GROUP-NAME_…". Which part of that is the name, the roster
    tells. Those who are in a group already are left out.
    """
    groups: defaultdict[str, list[Participant]] = defaultdict(list)
    for participant in participants:
        student = participant.student
        roster = participant.roster
        if student is None or roster is None or not roster.name or participant.group:
            continue
        group, hyphen, nothing = student.name.rpartition(f"-{roster.name}")
        if student.naming == Naming.MOODLE and group and hyphen and not nothing:
            groups[group].append(participant)
    return {group: members for group, members in groups.items() if len(members) > 1}


def _key_on_roster(id_: str) -> str:
    """The key of somebody on the roster, by which overrides know the person."""
    return f"roster:{name_key(id_)}"


def _names_of_twins(participant: Participant, same: Mapping[Participant, str]) -> list[str]:
    """The names in `same` of those who are neither the participant nor in the same group."""
    names = []
    for other, name in same.items():
        one_group = participant.group and other.group == participant.group
        if other is not participant and not one_group:
            names.append(name)
    return names
