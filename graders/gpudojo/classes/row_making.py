"""Makes the row of a participant: verdict, weights, overrides, lateness."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from gpudojo.classes.class_state import ClassState, StoredSubmission
from gpudojo.classes.course_rules import CourseRules, Worth, weigh_exercise
from gpudojo.classes.judging import NO_FUNCTIONS
from gpudojo.classes.lateness import late_by
from gpudojo.classes.overrides import LATE, REVIEW, LogEntry, Overrides, apply_overrides
from gpudojo.classes.participants import Participant
from gpudojo.classes.reviews import review_that_holds
from gpudojo.classes.run_settings import POOL_SIZE
from gpudojo.classes.verdict_store import VerdictStore
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import (
    Attempt,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    Timing,
    sum_points,
)
from gpudojo.model.results_file import first_names, without_surrogates
from gpudojo.submissions.entries import Naming
from gpudojo.submissions.names import parse_platform_name
from gpudojo.submissions.reading import WRITTEN


class GradedExercise(NamedTuple):
    """An exercise that is graded, and its points before the course weighs them."""

    stem: str
    title: str
    worth: Worth  # in the course
    points_of_checks: float  # all of them
    points_graded: float  # of the functions that are graded


class RowMaker:
    """Makes the rows of a class. It reads verdicts, and judges records that have no verdict yet."""

    def __init__(
        self, out: Path, state: ClassState, course: CourseRules, overrides: Overrides
    ) -> None:
        """Make no row yet. `out` is the folder of the class."""
        self.out = out
        self.state = state
        self.course = course
        self.overrides = overrides
        # With seeds per student there are as many as students.
        self._verdicts = functools.lru_cache(POOL_SIZE + 1)(self._open_verdicts)

    def make_row(
        self,
        participant: Participant,
        counted: StoredSubmission | None,
        twins: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> SubmissionRow:
        """The row of a participant, of whose submissions one counts.

        `twins` are the names of others who handed in the same files, by the content of a submission
        of the participant. A verdict that is missing is
        made and kept. Raises BadClass where the reference's record cannot be read for that, OSError
        where it cannot be written, BadDay where the day cannot be imported, and BadFile where the
        course names an exercise that is not there.
        """
        row = self.row_for_submission(participant, counted, twins=twins)
        if len(participant.submissions) < 2:
            return row
        return replace(row, attempts=self._list_attempts(participant, counted, row))

    def row_for_submission(
        self,
        participant: Participant,
        submission: StoredSubmission | None,
        verdict: SubmissionRow | None = None,
        twins: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> SubmissionRow:
        """The row that a participant has if this submission counts.

        The row does not list other attempts. Without a submission, it is that of somebody who is
        absent. `verdict` is the grader's on the submission, if the caller has it; else it is read,
        or made and kept. Raises BadClass where the reference's record cannot be read for that,
        OSError where it cannot be written, BadDay where the day cannot be imported, and BadFile
        where the course names an exercise that is not there.
        """
        if verdict is None:
            if submission:
                verdict = self.verdict_on(submission)
            else:
                verdict = _absent_verdict(participant)
        # Points: by the course, and then by people.
        exercises = self._weigh_exercises(verdict) + self.course.rows_by_hand
        overrides = self.overrides.entries_for(participant.keys, everyone=submission is not None)
        exercises, problems_of_overrides = apply_overrides(exercises, overrides)
        timing = self._timing_of(participant, submission, overrides.get(LATE))

        # Reasons for a person to look at it.
        review = _explain_missing_functions(verdict.needs_human, submission)
        review += participant.review
        if submission is not None:
            review += self._describe_twins(participant, submission, verdict, twins)
        if submission is not None and self.course.late.costs_points:
            review += _doubts_about_lateness(participant, submission, timing)
        if timing is not None and timing.decide_again:
            review.append(
                "how late it was had been decided by hand for another hand-in, and what the "
                "platform says counts now; "
                f"to decide it again: {timing.decide_again}"
            )
        review += problems_of_overrides

        row = replace(
            verdict,
            submission=participant.name,
            score=sum_points(exercise.score for exercise in exercises),
            max_score=sum_points(
                exercise.max_score for exercise in exercises if not exercise.extra
            ),
            exercises=exercises,
            needs_human=review,
            roster=participant.roster,
            group=participant.group,
            **_fields_of_participant(participant),
        )
        if submission is not None:
            row = replace(row, **self._fields_of_submission(submission, verdict))
        row = replace(row, canvas_file=_file_on_canvas(participant, submission, row.identifier))
        row = replace(row, reviewed=review_that_holds(row, overrides.get(REVIEW)))
        return self.course.with_published_points(row, timing)

    def _describe_twins(
        self,
        participant: Participant,
        counted: StoredSubmission,
        verdict: SubmissionRow,
        twins: Mapping[str, Sequence[str]],
    ) -> list[str]:
        """Who else handed in the same files as what counts, or as another attempt.

        `verdict` is that on what counts. `twins` are names by content. Raises BadDay where the day
        cannot be imported.
        """
        others = {each.content: each for each in participant.submissions}
        others.pop(counted.content, None)
        reasons = []
        names = twins.get(counted.content)
        if names and self._shows_own_work(counted, verdict):
            reasons.append(f"the same files as {first_names(names, 3)}")
        for content, attempt in others.items():
            names = twins.get(content)
            if names and self._shows_own_work(attempt, self.kept_verdict(attempt)):
                which = participant.which_attempt(attempt, counted)
                reasons.append(f"{which} has the same files as {first_names(names, 3)}")
        return reasons

    def _shows_own_work(self, submission: StoredSubmission, verdict: SubmissionRow | None) -> bool:
        """True if a function was written, so that two who hand in the same files are a surprise.

        Answers to questions, such as the letters of exercise 12, are the same for everybody who is
        right, and for everybody who has not answered yet. Without a verdict it may have been.
        Raises BadDay where the day cannot be imported.
        """
        if submission.problem:
            return False
        if verdict is None:
            return True
        written: set[str] = set()
        for exercise in exercises_of(self.state.day):
            for function in exercise.functions:
                if not function.is_value:
                    written.add(function.name)
        for row in verdict.exercises:
            for check in row.checks:
                judged = check.outcome in (Outcome.PASSED, Outcome.FAILED)
                if judged and not check.absent and check.function in written:
                    return True
        return False

    def _fields_of_submission(
        self, submission: StoredSubmission, verdict: SubmissionRow
    ) -> dict[str, object]:
        """The fields of a row that say what was handed in and graded.

        They are by the name of the field.
        """
        own_reference = submission.reference != self.state.reference
        return {
            "notes": [*submission.notes, *verdict.notes],
            "record": submission.record,
            "reference": submission.reference if own_reference else "",
            "graded_at": submission.at,
            "gone": _is_gone(Path(submission.origin)),
            "public_scenarios": submission.public_scenarios,
        }

    def _timing_of(
        self,
        participant: Participant,
        submission: StoredSubmission | None,
        by_hand: LogEntry | None,
    ) -> Timing | None:
        """When the submission was handed in, and whether that was late.

        `by_hand` is what a person says about it, and comes first; of another hand-in, it does not
        count. Returns None where nothing is
        known of deadlines and dates.
        """
        names = participant.extended_as
        if submission is None:
            return self.course.timing_of("", "", False, names)
        submitted = participant.time_of(submission)
        told_by = ""
        if submitted or submission.late:
            told_by = _source_of_time(participant, submission)
        timing = self.course.timing_of(submitted, told_by, submission.late, names)
        if by_hand is None:
            return timing
        if not by_hand.is_of_hand_in(submission):
            again = shlex.join(("dojo", "override", participant.name, "--late", by_hand.delay))
            return replace(timing or Timing(), decide_again=again)
        return late_by(timing, self.course.late, by_hand.late_seconds, by_hand.comment)

    def _list_attempts(
        self, participant: Participant, counted: StoredSubmission | None, row: SubmissionRow
    ) -> list[Attempt]:
        """All submissions of a participant, with their points in the course.

        `row` is the row of `counted`, the submission that counts. Of one whose verdict is no longer
        there, the points are those of its time. Raises BadDay where the day cannot be imported, and
        BadFile where the course names an exercise that is not there.
        """
        attempts = []
        for submission in participant.submissions:
            score = submission.score
            max_score = submission.max_score
            # Points by the rules of today, or those of its time where there is no verdict any more.
            if submission is counted:
                own_row: SubmissionRow | None = row
            else:
                own_row = self._row_of_attempt(participant, submission)
            if own_row is not None:
                score = own_row.score
                max_score = own_row.max_score
            attempt = Attempt(
                submission=submission.name,
                digest=submission.digest,
                score=score,
                max_score=max_score,
                graded_at=submission.at,
                submitted=participant.time_of(submission),
                counts=submission is counted,
                changes=submission.changes,
            )
            attempts.append(attempt)
        return attempts

    def _row_of_attempt(
        self, participant: Participant, submission: StoredSubmission
    ) -> SubmissionRow | None:
        """The row if an earlier attempt counted.

        Returns None where its verdict is no longer there: nothing is judged again. Raises BadDay
        where the day cannot be imported, and BadFile where the course names an exercise that is not
        there.
        """
        verdict = self.kept_verdict(submission)
        if verdict is None:
            return None
        return self.row_for_submission(participant, submission, verdict)

    # Points

    @functools.cached_property
    def graded_exercises(self) -> dict[str, GradedExercise]:
        """By stem, the exercises that are graded; found once.

        Those are left out that the course does not name, or of which no function is graded. Raises
        BadFile for a bad name in the course, and BadDay where the day cannot be imported.
        """
        exercises = exercises_of(self.state.day)
        worths = self.course.worth_by_exercise(exercises)
        only = set(self.state.only)
        graded = {}
        for exercise in exercises:
            # The points of all of its checks, and of those that are graded.
            all_points = []
            graded_points = []
            for function in exercise.functions:
                points = [check.points for check in function.checks]
                all_points += points
                if not only or function.name in only:
                    graded_points += points
            if exercise.stem in worths and graded_points:
                graded[exercise.stem] = GradedExercise(
                    stem=exercise.stem,
                    title=exercise.title,
                    worth=worths[exercise.stem],
                    points_of_checks=sum_points(all_points),
                    points_graded=sum_points(graded_points),
                )
        return graded

    @property
    def max_score(self) -> float:
        """What the whole is worth, without extra credit."""
        exercises = [*self._weigh_absent(), *self.course.rows_by_hand]
        return sum_points(exercise.max_score for exercise in exercises if not exercise.extra)

    def _weigh_exercises(self, verdict: SubmissionRow) -> list[ExerciseRow]:
        """The exercises of a verdict that are graded, with their points in the course.

        They are in the order of the day. Of an absent student all are there, without points. Raises
        BadFile for a bad name in the course, and BadDay where the day cannot be imported.
        """
        if verdict.status is SubmissionStatus.ABSENT:
            return self._weigh_absent()
        rows = {row.exercise: row for row in verdict.exercises}
        weighed = []
        for stem, exercise in self.graded_exercises.items():
            if stem in rows:
                row = weigh_exercise(rows[stem], exercise.worth, exercise.points_of_checks)
                weighed.append(row)
        return weighed

    def _weigh_absent(self) -> list[ExerciseRow]:
        """The exercises of somebody who handed in nothing: all that are graded, with 0 points.

        Raises BadFile for a bad name in the course, and BadDay where the day cannot be imported.
        """
        weighed = []
        for exercise in self.graded_exercises.values():
            row = ExerciseRow(exercise.stem, exercise.title, 0.0, exercise.points_graded)
            weighed.append(weigh_exercise(row, exercise.worth, exercise.points_of_checks))
        return weighed

    # Verdicts

    def verdict_on(self, submission: StoredSubmission) -> SubmissionRow:
        """The grader's verdict on a submission; made and kept now where it is not there.

        Raises BadClass where the reference's record cannot be read for that, OSError where the
        verdict cannot be written, and BadDay where the day cannot be imported.
        """
        verdicts = self._verdicts_for(submission)
        if submission.record:
            return verdicts.load_or_judge(submission.record)
        return verdicts.judge_unreadable(submission.problem)

    def kept_verdict(self, submission: StoredSubmission) -> SubmissionRow | None:
        """The verdict as it was made when the submission ran; None if it is no longer there.

        That on one that could not be read is made anew. Raises BadDay where the day cannot be
        imported.
        """
        verdicts = self._verdicts_for(submission)
        if not submission.record:
            return verdicts.judge_unreadable(submission.problem)
        return verdicts.kept_row(submission.record)

    def _verdicts_for(self, submission: StoredSubmission) -> VerdictStore:
        """The verdicts by the reference that a submission was judged against."""
        return self._verdicts(submission.reference, submission.judging_key, tuple(submission.only))

    def _open_verdicts(
        self, reference: str, judging_key: str, only: tuple[str, ...]
    ) -> VerdictStore:
        """The verdicts for one reference and one version of the code that judges."""
        return VerdictStore(self.out, self.state.day, frozenset(only), reference, judging_key)


def _absent_verdict(participant: Participant) -> SubmissionRow:
    """The verdict on somebody who handed in nothing."""
    return SubmissionRow(
        participant.name, SubmissionStatus.ABSENT, 0.0, 0.0, reason="Nothing was handed in."
    )


def _fields_of_participant(participant: Participant) -> dict[str, object]:
    """The fields of a row that say whose it is.

    The name on the roster comes before that of the files.
    """
    student = participant.student
    roster = participant.roster
    name_on_roster = ""
    if roster:
        name_on_roster = roster.name
    if student is not None:
        identified = student
        if student.identifier is None and participant.identified is not None:
            identified = participant.identified
        return {
            "student": name_on_roster or student.student,
            "identifier": identified.identifier,
            "naming": identified.naming,
        }
    return {
        "student": name_on_roster or participant.name,
        "identifier": roster.id if roster else None,
        "naming": None,
    }


def _source_of_time(participant: Participant, submission: StoredSubmission) -> str:
    """Who says when a submission was handed in: a platform, the commit, or the roster."""
    student = participant.sender or participant.student
    naming = ""
    if student:
        naming = student.naming
    if naming not in ("plain", "classroom", ""):
        return naming
    if submission.submitted:
        return "commit"
    return "roster"


def _doubts_about_lateness(
    participant: Participant, submission: StoredSubmission, timing: Timing | None
) -> list[str]:
    """What to review where a platform says late, and nobody knows when that was.

    There is nothing to review where the time is known.
    """
    if timing is None or not submission.late or participant.time_of(submission):
        return []
    if timing.decided_by_hand:
        return []
    if timing.late:
        return ["late, and by how much is not known: one day was counted"]
    if timing.extended:
        return ["the platform says late, and does not know of the extension; no penalty was taken"]
    return []


def _explain_missing_functions(
    reasons: Sequence[str], submission: StoredSubmission | None
) -> list[str]:
    """The reasons to review; where no function was found, with what the files say about it."""
    if submission is None:
        return list(reasons)
    why = []
    for note in submission.notes:
        if note.endswith(WRITTEN):
            why.append(f"{note[:1].lower()}{note[1:]}")
    explained = []
    for reason in reasons:
        if why and reason == NO_FUNCTIONS:
            reason = f"{reason}: {' '.join(why)}"
        explained.append(reason)
    return explained


def _file_on_canvas(
    participant: Participant, counted: StoredSubmission | None, identifier: str | None
) -> str:
    """The name of the file that Canvas handed out of a participant with this id; else empty.

    It is that of what counts. Where that came in another way, as by mail, or is another member's of
    the group, it is the latest of the participant's own.
    """
    submissions = []
    if counted is not None:
        submissions.append(counted)
    for student in (participant.student, participant.identified):
        if student is not None:
            submissions += reversed(student.sent)
    for submission in submissions:
        name = Path(submission.origin).name
        parsed = parse_platform_name(name, is_folder=False)
        if parsed is None or parsed.naming is not Naming.CANVAS:
            continue
        if parsed.identifier == identifier:
            shown: str = without_surrogates(name)
            return shown
    return ""


def _is_gone(origin: Path) -> bool:
    """True if a submission was taken away, and not the whole folder that it was in."""
    return not origin.exists() and origin.parent.is_dir()
