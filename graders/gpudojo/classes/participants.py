"""Who has a row in the results: participants, and groups of them who share submissions."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpudojo.classes.class_state import StoredSubmission, Student
from gpudojo.classes.names import name_key
from gpudojo.model.results import RosterRow, both_names
from gpudojo.submissions.names import fold_case, natural_key


@dataclass(eq=False, slots=True)
class Participant:
    """Somebody who has a row: a student who handed in, a person on the roster, or both."""

    name: str
    keys: list[str]  # by which overrides know the participant
    student: Student | None = None
    submissions: list[StoredSubmission] = field(default_factory=list)
    roster: RosterRow | None = None
    submitted: str = ""  # says the roster
    group: str = ""
    # Of a group: by digest, what the roster says of the member who handed it in.
    submitted_in_group: dict[str, str] | None = None
    sender: Student | None = None  # the member of the group who handed in, or the group itself
    review: list[str] = field(default_factory=list)
    _all_names: frozenset[str] | None = None

    @property
    def _name_on_roster(self) -> str:
        """The name on the roster. Empty where it has none, or the participant is not on it."""
        if self.roster:
            return self.roster.name
        return ""

    @property
    def display_name(self) -> str:
        """The name on the roster; without one, that of the submission."""
        return self._name_on_roster or self.name

    @property
    def sort_name(self) -> str:
        """The name by which lists are sorted: the family name, where the roster tells it."""
        if self.roster is None:
            return self.name
        return self.roster.sorted_as or self.name

    @property
    def full_name(self) -> str:
        """The name on the roster, with that of the submission."""
        return both_names(self._name_on_roster, self.name)

    @property
    def id_or_name(self) -> str:
        """What to write in a course file where several participants have one name."""
        if self.roster is None:
            return self.name
        return self.roster.id or self.name

    @property
    def all_names(self) -> frozenset[str]:
        """Everything by which the participant may be called, as keys of names."""
        if self._all_names is None:
            keys = set()
            for name in (*self._names_of_submission(), *self._names_on_roster()):
                if name:
                    keys.add(name_key(name))
            self._all_names = frozenset(keys)
        return self._all_names

    def _names_of_submission(self) -> list[str]:
        """The names that files, platforms and overrides have for the participant."""
        names = [self.name, *self.keys]
        student = self.student
        if student is not None:
            names += [student.name, student.student, student.identifier or ""]
            if len(student.people) == 1:
                names += student.people[0]
        return names

    def _names_on_roster(self) -> list[str]:
        """Ids and names on the roster; none where the participant is not on it."""
        row = self.roster
        if row is None:
            return []
        return [row.id, row.name, row.email, row.github, row.login]

    def time_of(self, submission: StoredSubmission) -> str:
        """When a submission was handed in, as the platform or the roster says; else empty."""
        if submission.submitted:
            return submission.submitted
        if self.submitted_in_group is not None:
            in_group = self.submitted_in_group.get(submission.digest)
            if in_group:
                return in_group
        return self.submitted

    def take_submissions_of(self, key: str, student: Student) -> None:
        """Become the participant for a student, who is known by that key.

        The key is added, and the submissions are those of the student alone.
        """
        self.keys.append(key)
        self.student = student
        self.submissions = list(student.sent)


def sort_by_time(
    submissions: list[StoredSubmission], time_of: Callable[[StoredSubmission], str]
) -> None:
    """Sort submissions by times in ISO 8601, which may be in several time zones."""
    submissions.sort(key=lambda each: datetime.datetime.fromisoformat(time_of(each)))


def with_unique_names(participants: list[Participant]) -> list[Participant]:
    """The participants, sorted by name; of several with one name, the later ones are renamed.

    The participants themselves are changed.
    """
    used: set[str] = set()
    for participant in participants:
        participant.name = _unused_name(participant, used)
        used.add(fold_case(participant.name))
    return sorted(participants, key=lambda each: natural_key(each.sort_name))


def _unused_name(participant: Participant, used: set[str]) -> str:
    """The participant's name; where it is used, with the id on the roster or a number."""
    name = participant.name
    if fold_case(name) in used and participant.roster is not None:
        name = f"{participant.name} ({participant.roster.id})"
    number = 2
    while fold_case(name) in used:
        name = f"{participant.name} ({number})"
        number += 1
    return name


def describe_namesakes(name: str, participants: Sequence[Participant]) -> str:
    """The beginning of a sentence about several participants of one name."""
    ids = [each.id_or_name for each in participants]
    listed = ", ".join(ids)
    return f"{len(ids)} students are called {name!r}: write {listed}"


Notice = Callable[..., None]


class GroupWork:
    """Shares what one member of a group handed in with all of its members.

    `participants` is changed: members of whom nothing else is known are added, and what was handed
    in under the name of the group itself is taken out.
    """

    def __init__(
        self,
        participants: list[Participant],
        unmatched: list[str],
        has_roster: bool,
        notice: Notice,
    ) -> None:
        """`notice` is called with a sentence and the setting that it is about."""
        self.participants = participants
        self.unmatched = unmatched  # names that are not on the roster: a group need not be
        self.has_roster = has_roster
        self.notice = notice
        self._group_of: dict[Participant, str] = {}

    def share_submissions(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Find the members of all groups, and give them what was handed in for the group.

        A member who is not among the participants is added to them.
        """
        for group, names in groups.items():
            members = []
            for name in names:
                member = self._find_member(group, name)
                if member is not None:
                    members.append(member)
            self.participants += [each for each in members if each not in self.participants]
            self._share_within(group, members)

    def _find_member(self, group: str, name: str) -> Participant | None:
        """The member of that name; None, after a notice, where it is not clear who that is.

        Somebody of whom nothing is known becomes a new participant, who has handed in nothing.
        """
        key = name_key(name)
        matching = [each for each in self.participants if key in each.all_names]
        if len(matching) > 1:
            namesakes = describe_namesakes(name, matching)
            self.notice(f"{namesakes}; nobody of them is in the group", "groups", group)
            return None
        if matching:
            member = matching[0]
        else:
            member = Participant(name, [f"plain:{fold_case(name)}"])
            if self.has_roster:
                self.notice(f"nobody is called {name!r}", "groups", group)
        other = self._group_of.get(member)
        if other is not None:
            reason = f"{name!r} is in the group {other} by another name, and stays there"
            self.notice(reason, "groups", group)
            return None
        self._group_of[member] = group
        return member

    def _share_within(self, group: str, members: Sequence[Participant]) -> None:
        """Give all members what each of them, or the group by its own name, handed in.

        They are sorted by time, so that the last one is the latest. Who has the name of the group,
        and is no member, is taken out.
        """
        joint = []  # those who have the name of the group
        for each in self.participants:
            if name_key(group) in each.all_names and each not in members:
                joint.append(each)
        # Of equal submissions, that of the last sender counts.
        senders = {}
        everybody = [*joint, *members]
        for sender in everybody:
            for submission in sender.submissions:
                senders[submission.digest] = sender
        if not senders:
            return
        for each in joint:
            self._take_out(each)
        shared = []
        for sender in everybody:
            for submission in sender.submissions:
                if senders[submission.digest] is sender:
                    shared.append(submission)
        # When each was handed in, as the platform or the roster of its sender says.
        times = {}
        for submission in shared:
            sender = senders[submission.digest]
            times[submission.digest] = submission.submitted or sender.submitted
        if all(times.values()):
            sort_by_time(shared, lambda each: times[each.digest])
        else:
            shared.sort(key=lambda each: each.at)
        last_sender = senders[shared[-1].digest]
        for member in members:
            member.submissions = shared
            member.group = group
            member.submitted_in_group = times
            member.sender = last_sender.student

    def _take_out(self, participant: Participant) -> None:
        """Take out who is not a person, but the group itself."""
        self.participants.remove(participant)
        if participant.full_name in self.unmatched:
            self.unmatched.remove(participant.full_name)
