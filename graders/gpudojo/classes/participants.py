"""Who has a row in the results: participants, and groups of them who share submissions."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpudojo.classes.class_state import StoredSubmission, Student
from gpudojo.classes.hand_in_dates import (
    NO_DATES,
    HandInDates,
    RosterDate,
    SentSubmission,
    pair_with_date,
)
from gpudojo.classes.names import NamesOfPerson, find_people, name_key, suggest_people
from gpudojo.model.results import RosterRow, name_in_lists
from gpudojo.submissions.names import fold_case, natural_key


@dataclass(eq=False, slots=True)
class Participant:
    """Somebody who has a row: a student who handed in, a person on the roster, or both."""

    name: str
    keys: list[str]  # by which overrides know the participant
    student: Student | None = None
    # Who has the id of a platform, where `student`, the same person, has none.
    identified: Student | None = None
    submissions: list[StoredSubmission] = field(default_factory=list)
    roster: RosterRow | None = None
    roster_date: RosterDate | None = None  # the last hand-in, says the roster
    # Of earlier hand-ins, where the roster is several tables.
    earlier_roster_dates: list[RosterDate] = field(default_factory=list)
    group: str = ""
    # By digest, when each of the submissions was handed in; of those that the roster tells.
    dates: Mapping[str, RosterDate] = field(default_factory=lambda: NO_DATES)
    # The work that counts for a group, as other members handed it in at another time.
    copies: list[SentSubmission] = field(default_factory=list)
    sender: Student | None = None  # the member of the group who handed in, or the group itself
    review: list[str] = field(default_factory=list)
    # How several submissions came together of which nobody knows which one is the latest; else
    # empty.
    unknown_order: str = ""
    # Of those under which the same person handed in, too.
    more_names: list[str] = field(default_factory=list)
    # The names in the course file by which the person has an extension, as keys.
    extended_as: set[str] = field(default_factory=set)
    _names: NamesOfPerson | None = None

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
        return name_in_lists(self.roster, self.name)

    @property
    def id_or_name(self) -> str:
        """What to write in a course file where several participants have one name, and who that is.

        The section and the address of the roster stand behind it.
        """
        if self.roster is None:
            return self.name
        return self.roster.id_and_details or self.name

    @property
    def names(self) -> NamesOfPerson:
        """Everything by which the participant may be called; found once."""
        if self._names is None:
            others = [*self._names_of_submission()]
            if self.roster is not None:
                others += self.roster.all_names
            self._names = NamesOfPerson.from_names(self.name, others)
        return self._names

    def _names_of_submission(self) -> list[str]:
        """The names that files, platforms and overrides have for the participant."""
        names = [*self.keys, *self.more_names]
        student = self.student
        if student is not None:
            names += [student.name, student.student, student.identifier or ""]
            if len(student.people) == 1:
                names += student.people[0]
        return names

    def time_of(self, submission: StoredSubmission) -> str:
        """When a submission was handed in, as the platform or the roster says; else empty."""
        if submission.submitted:
            return submission.submitted
        date = self.dates.get(submission.digest)
        if date is None:
            return ""
        return date.time

    def which_attempt(self, attempt: StoredSubmission, counted: StoredSubmission) -> str:
        """What to call a submission that does not count, beside the one that does."""
        submissions = self.submissions
        if submissions.index(attempt) > submissions.index(counted):
            return "a later attempt"
        return "an earlier attempt"

    def sent_submissions(self, given: Collection[str]) -> list[SentSubmission]:
        """The submissions, each with the date that the roster has for it now, if it has one.

        `given` are the digests of those that were given in this run.
        """
        return pair_with_date(self.submissions, self.roster_date, given)

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
    """Sort a list of submissions in place, by times in ISO 8601 of any time zones.

    Raises ValueError for a time that is none.
    """
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


def find_participants(name: str, participants: Iterable[Participant]) -> list[Participant]:
    """Those who are meant by a name that somebody typed; see `find_people`."""
    return find_people(name, {each: each.names for each in participants})


def describe_namesakes(name: str, participants: Sequence[Participant]) -> str:
    """The beginning of a sentence about several participants of one name."""
    ids = [each.id_or_name for each in participants]
    listed = " or ".join(ids)
    return f"{len(ids)} students are called {name!r}: write {listed}"


def _latest_date(members: Iterable[Participant]) -> RosterDate | None:
    """The latest date that the roster has of one of a group; None without any."""
    dates = [each.roster_date for each in members if each.roster_date is not None]
    return max(dates, key=lambda date: date.moment, default=None)


Notice = Callable[..., None]


class _SentByMember(NamedTuple):
    """What a member of a group, or the group by its own name, handed in."""

    sender: Participant
    pair: SentSubmission
    date: RosterDate | None  # of the sender alone

    @property
    def earliness(self) -> tuple[bool, float, bool]:
        """A sort key: the earliest time first, unknown times last, and of these marked ones."""
        submission = self.pair.submission
        time = submission.submitted
        if not time and self.date is not None:
            time = self.date.time
        moment = 0.0
        if time:
            moment = datetime.datetime.fromisoformat(time).timestamp()
        return not time, moment, submission.late


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
        dates: HandInDates,
        notice: Notice,
    ) -> None:
        """Share nothing yet; `participants` will be changed.

        `unmatched` has the names that are not on the roster. `notice` is called with a sentence and
        the setting that it is about.
        """
        self.dates = dates
        self.participants = participants
        self.unmatched = unmatched  # names that are not on the roster: a group need not be
        self.has_roster = has_roster
        self.notice = notice
        self._group_of: dict[Participant, str] = {}

    def share_submissions(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Find the members of all groups, and give them what was handed in for the group.

        Without a roster, a member who is not among the participants is added to them. `notice` is
        called about a name that is not on the roster, means several or is in two groups: it is left
        out.
        """
        for group, names in groups.items():
            members = []
            for name in names:
                member = self._find_member(group, name)
                if member is not None:
                    members.append(member)
            self.participants += [each for each in members if each not in self.participants]
            self.share_within(group, members)

    def _find_member(self, group: str, name: str) -> Participant | None:
        """The member of that name; None, after a notice, where it is not clear who that is.

        There is none either for somebody who is in another group already. Without a roster,
        somebody of whom nothing is known becomes a new participant, who has handed in nothing. The
        group of the member is remembered.
        """
        matching = find_participants(name, self.participants)
        if len(matching) > 1:
            namesakes = describe_namesakes(name, matching)
            self.notice(f"{namesakes}; nobody of them is in the group", "groups", group)
            return None
        if matching:
            member = matching[0]
        elif self.has_roster:
            hint = suggest_people(name, [each.names for each in self.participants], "")
            self.notice(f"nobody is called {name!r}{hint}", "groups", group)
            return None
        else:
            member = Participant(name, [f"plain:{fold_case(name)}"])
        other = self._group_of.get(member)
        if other is not None:
            reason = f"{name!r} is in the group {other} by another name, and stays there"
            self.notice(reason, "groups", group)
            return None
        self._group_of[member] = group
        return member

    def share_within(self, group: str, members: Sequence[Participant]) -> None:
        """Give all members what each of them, or the group by its own name, handed in.

        The members are changed. The submissions are sorted by time, so that the last one is the
        latest; where not all times are known, by when they were graded, unreadable ones first. Who
        has the name of the group, and is no member, is taken out of the participants and of the
        unmatched names.
        """
        joint = []  # those who have the name of the group
        for each in self.participants:
            if name_key(group) in each.names.keys and each not in members:
                joint.append(each)
        all_sent = self._list_sent(joint, members)
        if not all_sent:
            return
        for each in joint:
            self._take_out(each)
        # Of the same work, the earliest counts: it was in by then.
        earliest: dict[str, _SentByMember] = {}
        for each_sent in sorted(all_sent, key=lambda each: each.earliness):
            earliest.setdefault(each_sent.pair.submission.work, each_sent)
        senders = {each.pair.submission.digest: each.sender for each in earliest.values()}
        sent = []
        copies = []
        for each_sent in all_sent:
            if each_sent in earliest.values():
                sent.append(each_sent.pair)
            else:
                copies.append(each_sent.pair._replace(date=each_sent.date))
        shared = [pair.submission for pair in sent]
        # When each was handed in, as the platform or the roster of its sender says.
        dates = self.dates.find(sent)
        times = {}
        for submission in shared:
            times[submission.digest] = submission.submitted
            if submission.digest in dates:
                times[submission.digest] = dates[submission.digest].time
        unknown_order = ""
        if all(times.values()):
            sort_by_time(shared, lambda each: times[each.digest])
        else:
            # What cannot be read is not taken for the latest.
            shared.sort(key=lambda each: (not each.problem, each.order))
            names = [each.full_name for each in dict.fromkeys(senders.values())]
            if len(names) > 1:
                unknown_order = f"handed in by several of the group: {', '.join(names)}"
        last_sender = senders[shared[-1].digest]
        for member in members:
            member.submissions = shared
            member.group = group
            member.dates = dates
            member.copies = copies
            member.unknown_order = unknown_order
            member.sender = last_sender.student

    def _list_sent(
        self, joint: Sequence[Participant], members: Sequence[Participant]
    ) -> list[_SentByMember]:
        """What each member, and those who have the name of the group, handed in."""
        sent = []
        for sender in (*joint, *members):
            date = sender.roster_date
            if sender in joint and date is None:
                date = _latest_date(members)
            pairs = pair_with_date(sender.submissions, date, self.dates.given)
            dates = self.dates.find(pairs)
            for pair in pairs:
                own_date = dates.get(pair.submission.digest)
                sent.append(_SentByMember(sender, pair, own_date))
        return sent

    def _take_out(self, participant: Participant) -> None:
        """Take out of the participants who is not a person, but the group itself.

        It is no longer among the unmatched names either.
        """
        self.participants.remove(participant)
        if participant.full_name in self.unmatched:
            self.unmatched.remove(participant.full_name)
