"""Grades one submission where a platform runs it: in a container, or in a student's checkout.

`python -m gpudojo.platforms._autograder PLATFORM ROOT DAY SECONDS` is what the scripts in a
container call. What is uploaded for it is made by `_bundles.py`.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import gpudojo
from gpudojo.classes.class_grading import ClassGrading
from gpudojo.classes.display import Display
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.grading.limits import DEFAULT_SECONDS
from gpudojo.grading.shipped_evidence import SHIPPED_SUFFIX, read_shipped_evidence
from gpudojo.model.errors import BadClass, DojoError
from gpudojo.model.results import POINT_PLACES, ClassResults, ExerciseRow, Grade, SubmissionRow
from gpudojo.model.results_file import read
from gpudojo.platforms import Options, exercises_of_day, exporter_of
from gpudojo.platforms._files import save_json, save_text
from gpudojo.platforms._texts import one_line, points_of_maximum
from gpudojo.sandbox.layers import missing_layers

BUNDLE: Final = "CLASSROOM50_BUNDLE_DIR"
CHECKOUT_MEMORY: Final = 2 << 30
# The smallest container has 768 MB, of which torch and the grader take 340.
CONTAINER_MEMORY: Final = 256 << 20


@dataclass(frozen=True)
class JudgedBy:
    """What a submission is judged by: reference solutions, or recorded evidence of them."""

    reference: Path | None = None
    evidence: Path | None = None  # the folder it lies in; None: this installation
    secret: str | None = None
    note: str = ""  # what an instructor should know about the choice


@dataclass(frozen=True)
class GradedCheckout:
    """The results of a class that has one submission."""

    results: ClassResults
    seed: int | None  # the public one that scenarios were drawn from; None where it is a secret

    @property
    def row(self) -> SubmissionRow:
        """The row of the one submission."""
        return self.results.submissions[0]


def grade_checkout(
    folder: Path,
    day: str,
    judged_by: JudgedBy,
    seconds: float = DEFAULT_SECONDS,
    memory: int = CHECKOUT_MEMORY,
    require_isolation: bool = False,
    only: Iterable[str] = (),
) -> GradedCheckout:
    """Grade one submission, whatever is in its folder. Nothing is written to that folder.

    `seconds` are for each function, `memory` is in bytes, `only` are stems of the exercises that
    are graded; none: all. Raises BadClass without such a folder, and other DojoErrors or OSError
    where the grader itself fails.
    """
    if not folder.is_dir():
        raise BadClass(f"{folder} is not a folder")
    # Outside of the checkout: nothing that lies in it can be taken for a record of ours.
    with tempfile.TemporaryDirectory(prefix="dojo-classroom-") as out:
        options = GradingOptions(
            submissions=[folder],
            out=Path(out),
            reference=judged_by.reference,
            day=day,
            secret=judged_by.secret,
            seconds=seconds,
            memory=memory,
            require_isolation=require_isolation,
            evidence=judged_by.evidence,
            alone=True,
            only=frozenset(only),
        )
        grading = ClassGrading(options, Display(None))
        results = read(grading.run().path)
    recorded = grading.recorded
    seed = None
    if recorded is not None and recorded.is_public:
        seed = recorded.seed
    return GradedCheckout(results, seed)


def choose_what_to_judge_by(
    day: str, environment: Mapping[str, str], reference: Path | None = None
) -> JudgedBy:
    """Return what there is to judge by; never anything in the checkout, which is the student's.

    That is, in this order: references, with a secret, where the instructor has put them; recorded
    evidence, from the bundle or from the release that is installed; in a clone of gpudojo, its own
    references. Raises BadClass where there is none of them, and BadEvidence where recorded evidence
    cannot be read.
    """
    # References that the instructor has put there.
    secret = environment.get("DOJO_SEED") or None
    bundle = None
    if environment.get(BUNDLE):
        bundle = Path(environment[BUNDLE])
    if reference is None and bundle is not None:
        in_bundle = bundle / "reference" / day
        if in_bundle.is_dir():
            reference = in_bundle
    if reference is not None:
        return JudgedBy(reference, secret=secret)

    # Recorded evidence.
    note = ""
    if secret:
        note = (
            "DOJO_SEED is set, but there are no reference solutions to run with it: "
            "the public seed was used."
        )
    if bundle is not None and os.path.isfile(bundle / f"{day}{SHIPPED_SUFFIX}"):
        return JudgedBy(evidence=bundle, note=note)
    if read_shipped_evidence(day) is not None:
        return JudgedBy(note=note)

    # A clone of gpudojo.
    repository = Path(gpudojo.__file__).resolve().parents[2]
    in_clone = repository / "reference" / day
    if in_clone.is_dir():
        return JudgedBy(in_clone, secret=secret)
    raise BadClass(
        "there is nothing to judge by: this gpudojo has no recorded evidence, and no reference "
        f"solutions were given, as by dojo classroom --reference reference/{day}"
    )


def _write_no_result(target: Path, why: str, day: str, only: Collection[str]) -> None:
    """Remove results.json: without it, Gradescope says that the autograder failed.

    It records no score then. Raises OSError where it cannot be removed.
    """
    (target / "results.json").unlink(missing_ok=True)


def _write_not_gradable(target: Path, why: str, day: str, only: Collection[str]) -> None:
    """Tell PrairieLearn that this is not gradable: it costs neither points nor an attempt.

    Writes results.json, with the reason. Raises OSError.
    """
    result = {"gradable": False, "format_errors": [_text_of_apology(why)]}
    save_json(target / "results.json", result)


def _write_no_scores(target: Path, why: str, day: str, only: Collection[str]) -> None:
    """Give Autolab no score for any problem, which leaves them ungraded.

    Writes feedback.txt, with the reason. Raises BadDay where the day cannot be imported, and
    OSError.
    """
    scores = dict.fromkeys(each.exercise for each in _graded_exercises(day, only))
    last_line = msgspec.json.encode({"scores": scores}).decode()
    save_text(target / "feedback.txt", f"{_text_of_apology(why)}\n{last_line}\n")


def _text_of_apology(why: str) -> str:
    """Return what a student reads if the grader could not run."""
    advice = "This is not your fault; please tell your instructor."
    return f"The grader could not run: {why}. {advice}"


class Container(NamedTuple):
    """Where a platform puts a submission and the evidence, and what it gets if the grader fails."""

    submission: str
    evidence: str
    write_failure: Callable[[Path, str, str, Collection[str]], None]


CONTAINERS: Final = {
    "gradescope": Container("submission", "source/evidence", _write_no_result),
    "prairielearn": Container("student", "tests/evidence", _write_not_gradable),
    "autolab": Container("submission", "evidence", _write_no_scores),
}


def _graded_exercises(day: str, only: Collection[str]) -> tuple[ExerciseRow, ...]:
    """Return the exercises of a day that are graded: those with the stems `only`; empty: all.

    Raises BadDay where the day cannot be imported.
    """
    exercises = exercises_of_day(day)
    if only:
        exercises = tuple(each for each in exercises if each.exercise in only)
    return exercises


def main(platform: str, root: Path, day: str, seconds: float, only: Collection[str] = ()) -> int:
    """Grade the submission in a container, write what the platform reads, return an exit status.

    `root` is the folder in which the platform has everything, `only` are stems of the exercises
    that are graded; none: all. The status is 1 where the grader itself failed: then the platform is
    told that nobody is to blame. Raises KeyError for an unknown platform, and OSError where nothing
    can be written.
    """
    container = CONTAINERS[platform]
    target = root / "results"
    target.mkdir(parents=True, exist_ok=True)
    try:
        checkout = grade_checkout(
            root / container.submission,
            day,
            JudgedBy(evidence=root / container.evidence),
            seconds=seconds,
            memory=CONTAINER_MEMORY,
            only=only,
        )
        row = scale_row(checkout.row, assignment_points(root / "submission_metadata.json"))
        options = Options(submission=row.submission, exercises=_graded_exercises(day, only))
        exporter_of(platform)(checkout.results, [row], target, options)
        _print_for_instructor(checkout)
        return 0
    except (DojoError, OSError) as error:
        why = one_line(str(error))
    except Exception as error:
        # Whatever went wrong, the platform gets what it needs to blame nobody.
        traceback.print_exc()
        why = f"{type(error).__name__}, see the log"
    print(f"The grader could not run: {why}. No score was recorded.", file=sys.stderr)
    container.write_failure(target, why, day, only)
    return 1


class _Assignment(msgspec.Struct):
    total_points: float


class _Metadata(msgspec.Struct):
    assignment: _Assignment


def assignment_points(metadata: Path) -> float | None:
    """Return the assignment's points on Gradescope.

    None where they cannot be read or are not positive.
    """
    try:
        read_metadata = msgspec.json.decode(metadata.read_bytes(), type=_Metadata, strict=False)
    except (OSError, msgspec.MsgspecError):
        return None
    points = read_metadata.assignment.total_points
    if 0 < points < math.inf:
        return points
    return None


def scale_row(row: SubmissionRow, points: float | None) -> SubmissionRow:
    """Return the row with its score scaled to what the assignment is worth, if that is known."""
    if points is None or not row.max_score:
        return row
    scaled = round(row.score * points / row.max_score, POINT_PLACES)
    return msgspec.structs.replace(row, grade=Grade(scaled, points))


def _print_for_instructor(checkout: GradedCheckout) -> None:
    """Print what only the instructor should see: the scripts keep it from students."""
    row = checkout.row
    print(f"{one_line(row.submission)}: {points_of_maximum(row.score, row.max_score)} points")
    lacking = missing_layers(checkout.results.layers)
    print(f"Isolation layers missing in this container: {'; '.join(lacking) or 'none'}.")
    for sentence in (*row.notes, *row.needs_human):
        print(f"- {one_line(sentence)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5:]))
