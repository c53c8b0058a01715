"""GitHub Classroom, inside a workflow: what a grader step hands to autograding-grading-reporter.

The reporter has two totals: it records the sum of the tests' scores, and shows passed / all tests
× max_score. They agree only if all tests weigh the same, so a check is repeated until they do: one
worth 2 points appears twice beside one worth 1. A check that gpudojo could not judge counts as
passed, because it costs the student nothing.

`NAME.json` is the whole submission in one runner. The reporter reads it from an environment
variable, which holds 128 KiB; `NAME.base64` is written only if it fits. `NAME/exercise04.base64`
and its neighbours are one runner for each exercise: far less repetition, and a line for each
exercise in the reporter's table. `NAME/outputs` holds them all as lines to append to
$GITHUB_OUTPUT.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gpudojo.model.results import CheckRow, ClassResults, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_text
from gpudojo.platforms._rows import (
    SUBMISSION,
    Entry,
    costs_nothing,
    entries_to_export,
    exercises_with_missing,
    in_millionths,
    overall_outcome,
    points_of,
    rows_of_exercise,
)
from gpudojo.platforms._texts import (
    describe_check,
    full_text,
    join_texts,
    one_line,
    points_left_out,
    say_how_many_have_other_points,
)

# Characters of base64; the system's limit is 131,072 with the variable's name.
LARGEST: Final = 120_000
MOST_TESTS: Final = 5_000
# Characters: a submission must not be able to make its own report too large.
LONGEST_MESSAGE: Final = 1_000

Test = dict[str, Any]
Runner = dict[str, Any]  # what the reporter reads: status, max_score, tests


class EncodedRunner(NamedTuple):
    """A runner as the reporter reads it, and as a person may."""

    json: str
    base64: str


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write the runners of each submission, or the one asked for, and return the files.

    An earlier `.base64` file of a runner that is too large for one now is deleted. What the teacher
    should know is told by `options.say`. Raises OSError.
    """
    say_how_many_have_other_points(rows, options)
    written: list[Path] = []
    too_large = 0
    uneven = 0
    for entry in entries_to_export(rows, target, options):
        # The whole submission as one runner.
        runner = _make_runner(entry.row, entry.checks)
        _say_points_left_out_in_first_test(runner, entry.row)
        _make_sum_exact([runner], entry.checks)
        if not _shows_what_it_records(runner):
            uneven += 1
        encoded = _encode_runner(runner)
        written.append(save_text(target / f"{entry.name}.json", encoded.json))
        in_base64 = target / f"{entry.name}.base64"
        if len(encoded.base64) <= LARGEST:
            written.append(save_text(in_base64, encoded.base64))
        else:
            too_large += 1
            in_base64.unlink(missing_ok=True)  # an older one would be taken for this one
        written += _write_exercises(entry, options)
    # What the teacher should know.
    if too_large:
        options.say(
            f"{too_large} of the submissions do not fit into one environment variable; "
            "use a runner for each exercise."
        )
    if uneven:
        options.say(
            f"{uneven} of the submissions have points too fine for tests of equal weight: "
            "the reporter records the right total and shows another."
        )
    return written


def _write_exercises(entry: Entry, options: Options) -> list[Path]:
    """Write a runner for each exercise of a submission, and return the files.

    They are in the folder of the entry, with a file `outputs` that has a line for each of them.
    Raises OSError.
    """
    rows_by_runner = _rows_by_runner(entry, options)
    runners = {}
    all_checks: list[CheckRow] = []
    for runner_id, checks in rows_by_runner.items():
        runners[runner_id] = _make_runner(entry.row, checks)
        all_checks += checks
    _make_sum_exact(list(runners.values()), all_checks)
    first = next(iter(runners.values()))
    _say_points_left_out_in_first_test(first, entry.row)
    written = []
    outputs = ""
    for runner_id, runner in runners.items():
        encoded = _encode_runner(runner)
        written.append(save_text(entry.folder / f"{runner_id}.json", encoded.json))
        written.append(save_text(entry.folder / f"{runner_id}.base64", encoded.base64))
        outputs += f"{runner_id}={encoded.base64}\n"
    written.append(save_text(entry.folder / "outputs", outputs))
    return written


def _rows_by_runner(entry: Entry, options: Options) -> dict[str, list[CheckRow]]:
    """Return rows under the ids of runners, which may only have letters and digits.

    There is one for each exercise, and one for rows of the whole submission.
    """
    runners: dict[str, list[CheckRow]] = {}
    count = 0
    exercises = exercises_with_missing(entry.row, options.exercises)
    for position, exercise in enumerate(exercises, 1):
        number = exercise.exercise.partition("_")[0]
        if not (number.isascii() and number.isdigit()):
            number = f"{position:02}"
        runner_id = f"exercise{number}"
        while runner_id in runners:
            runner_id += "x"
        runners[runner_id] = rows_of_exercise(exercise, entry.row)
        count += len(runners[runner_id])
    of_submission = entry.checks[count:]
    if of_submission:
        runners[SUBMISSION] = of_submission
    return runners


def _make_runner(row: SubmissionRow, checks: list[CheckRow]) -> Runner:
    """Return checks as tests of equal weight, or one by one where that would be too many.

    Extra credit, which earns points and is worth none, is one test.
    """
    maximum = sum(in_millionths(check.max_points) for check in checks)
    weight = _common_weight(checks)
    tests = []
    for check in checks:
        is_extra = check.points > 0 and check.max_points == 0
        if weight and not is_extra and maximum // weight <= MOST_TESTS:
            tests += _repeat_check(check, weight)
        else:
            test = _make_test(
                check,
                name=describe_check(check),
                earned=costs_nothing(check),
                score=points_of(in_millionths(check.points)),
            )
            tests.append(test)
    return {
        "version": 3,
        "status": overall_outcome(row, checks),
        "max_score": points_of(maximum),
        "tests": tests,
    }


def _common_weight(checks: Iterable[CheckRow]) -> int:
    """Return the largest number of millionths that divides all points."""
    numbers = []
    for check in checks:
        numbers.append(in_millionths(check.points))
        numbers.append(in_millionths(check.max_points))
    return math.gcd(*numbers)


def _repeat_check(check: CheckRow, weight: int) -> list[Test]:
    """Return as many tests as the check is worth weights; as many pass as it has earned."""
    count = in_millionths(check.max_points) // weight
    passed = in_millionths(check.points) // weight
    claim = describe_check(check)
    tests = []
    for position in range(1, count + 1):
        name = f"{claim} ({position} of {count})"
        if count == 1:
            name = claim
        earned = position <= passed
        score = 0.0
        if earned:
            score = points_of(weight)
        test = _make_test(check, name, earned, score)
        if position > 1:
            test["message"] = ""  # said once
        tests.append(test)
    return tests


def _make_test(check: CheckRow, name: str, earned: bool, score: float) -> Test:
    """Return a test of the reporter, with texts that cannot be commands.

    `earned` is whether it passes.
    """
    return {
        "name": _without_commands(name),
        "status": "pass" if earned else "fail",
        "score": score,
        "message": _without_commands(full_text(check))[:LONGEST_MESSAGE],
        "test_code": _without_commands(check.id),  # what was run
        "filename": _without_commands(check.file or ""),
        "line_no": check.line or 0,  # 0, not absent: the reporter would print "line undefined"
        "duration": 0,
    }


def _say_points_left_out_in_first_test(runner: Runner, row: SubmissionRow) -> None:
    """Let the first test of a runner say what the points of the exercises leave out."""
    first = runner["tests"][0]
    message = join_texts(" ", _without_commands(points_left_out(row)), first["message"])
    first["message"] = message[:LONGEST_MESSAGE]


def _shows_what_it_records(runner: Runner) -> bool:
    """True if the reporter's two totals agree."""
    tests = runner["tests"]
    passed = sum(test["status"] == "pass" for test in tests)
    shown = passed / len(tests) * runner["max_score"]
    return math.isclose(shown, _sum_in_order(tests), rel_tol=1e-9, abs_tol=1e-9)


def _make_sum_exact(runners: list[Runner], checks: list[CheckRow]) -> None:
    """Change scores so that they add up, in the reporter's order, to the points of the checks.

    They would be 0.30000000000000004 otherwise. A last score that makes up for the others' rounding
    does not always exist: nothing added to 1.97 is 3.98. Where it does not, all scores become
    multiples of the last digit that the total has, whose sums are exact.
    """
    tests = [test for runner in runners for test in runner["tests"]]
    total = points_of(sum(in_millionths(check.points) for check in checks))
    earning = [test for test in tests if test["score"]]
    if not earning or _sum_in_order(tests) == total:
        return
    _let_last_make_up(tests, earning[-1], total)
    if _sum_in_order(tests) == total:
        return
    last_digit = math.ulp(total)
    for test in earning[:-1]:
        test["score"] = round(test["score"] / last_digit) * last_digit
    _let_last_make_up(tests, earning[-1], total)


def _let_last_make_up(tests: list[Test], last: Test, total: float) -> None:
    """Change the score of the last test, so that the sum is the total or near it."""
    last["score"] = 0.0
    last["score"] = total - _sum_in_order(tests)


def _sum_in_order(tests: list[Test]) -> float:
    """Return the sum of scores as the reporter makes it, with its rounding."""
    total = 0.0
    for test in tests:
        total += test["score"]
    return total


def _without_commands(text: str) -> str:
    """Return text that cannot be a workflow command in a log.

    Those begin a line, or are spelled ##[…] anywhere.
    """
    return one_line(text).replace("##[", "# #[")


def _encode_runner(runner: Runner) -> EncodedRunner:
    """Return a runner as JSON, and that in base64."""
    data = msgspec.json.encode(runner)
    return EncodedRunner(data.decode(), base64.b64encode(data).decode("ascii"))
