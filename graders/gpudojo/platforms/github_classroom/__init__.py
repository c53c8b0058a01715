"""GitHub Classroom's Actions: what a grader step hands to autograding-grading-reporter.

The reporter has two totals: it records the sum of the tests' scores, and shows passed / all tests × max_score.
They agree only if all tests weigh the same, so a check is repeated until they do: one worth 2 points appears twice
beside one worth 1. A check that gpudojo could not judge counts as passed, because it costs the student nothing.

`NAME.json` is the whole submission in one runner. The reporter reads it from an environment variable, which
holds 128 KiB; `NAME.base64` is written only if it fits. `NAME/exercise04.base64` and its neighbours are one runner for
each exercise: far less repetition, and a line for each exercise in the reporter's table. `NAME/outputs` holds them all
as lines to append to $GITHUB_OUTPUT.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from gpudojo.model.results import CheckRow, ClassResults, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms import _entries as common
from gpudojo.platforms._entries import Entry, entries, one_line, parts, points, save

LARGEST: Final = (
    120_000  # characters of base64; the system's limit is 131,072 with the variable's name
)
MOST: Final = 5_000  # tests
LONGEST: Final = (
    1_000  # characters of a message: a submission must not be able to make its own report too large
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    written: list[Path] = []
    too_large = 0
    uneven = 0
    common.say_apart(rows, options)
    for entry in entries(rows, target, options):
        runner = _told(_runner(entry.row, entry.checks), entry.row)
        _settle([runner], entry.checks)
        shown = (
            sum(test["status"] == "pass" for test in runner["tests"])
            / len(runner["tests"])
            * runner["max_score"]
        )
        uneven += not math.isclose(
            shown, _sum_in_order(runner["tests"]), rel_tol=1e-9, abs_tol=1e-9
        )
        text, encoded = _encoded(runner)
        written.append(save(target / f"{entry.name}.json", text))
        if len(encoded) <= LARGEST:
            written.append(save(target / f"{entry.name}.base64", encoded))
        else:
            too_large += 1
            (target / f"{entry.name}.base64").unlink(
                missing_ok=True
            )  # an older one would be taken for this one
        outputs = ""
        of_exercises = _by_exercise(entry, options)
        runners = [_runner(entry.row, checks) for _, checks in of_exercises]
        _settle(runners, [check for _, checks in of_exercises for check in checks])
        for (runner_id, _), runner in zip(of_exercises, runners, strict=True):
            runner = runner if outputs else _told(runner, entry.row)
            text, encoded = _encoded(runner)
            written.append(save(entry.folder / f"{runner_id}.json", text))
            written.append(save(entry.folder / f"{runner_id}.base64", encoded))
            outputs += f"{runner_id}={encoded}\n"
        written.append(save(entry.folder / "outputs", outputs))
    if too_large:
        options.say(
            f"{too_large} of the submissions do not fit into one environment variable; use a runner for each exercise."
        )
    if uneven:
        options.say(
            f"{uneven} of the submissions have points too fine for tests of equal weight: the reporter records the "
            "right total and shows another."
        )
    return written


def _by_exercise(entry: Entry, options: Options) -> list[tuple[str, list[CheckRow]]]:
    """Rows under the ids of runners, which may only have letters and digits."""
    runners: dict[str, list[CheckRow]] = {}
    for position, exercise in enumerate(common.whole(entry.row, options.exercises), 1):
        number = exercise.exercise.partition("_")[0]
        own = (
            f"exercise{number}"
            if number.isascii() and number.isdigit()
            else f"exercise{position:02}"
        )
        while own in runners:
            own += "x"
        runners[own] = common.of_exercise(exercise, entry.row)
    if rest := entry.checks[sum(map(len, runners.values())) :]:
        runners["submission"] = rest
    return list(runners.items())


def _runner(row: SubmissionRow, checks: list[CheckRow]) -> dict[str, Any]:
    grain = math.gcd(
        *(parts(number) for check in checks for number in (check.points, check.max_points))
    )
    largest = sum(parts(check.max_points) for check in checks)
    if grain and largest // grain <= MOST:
        tests = [test for check in checks for test in _repeated(check, grain)]
    else:
        tests = [
            _test(check, common.name_of(check), common.good(check), points(parts(check.points)))
            for check in checks
        ]
    return {
        "version": 3,
        "status": common.verdict(row, checks),
        "max_score": points(largest),
        "tests": tests,
    }


def _told(runner: dict[str, Any], row: SubmissionRow) -> dict[str, Any]:
    """The runner, whose first test says what the points of the exercises leave out."""
    first = runner["tests"][0]
    first["message"] = " ".join(filter(None, [_quoted(common.apart(row)), first["message"]]))[
        :LONGEST
    ]
    return runner


def _repeated(check: CheckRow, grain: int) -> list[dict[str, Any]]:
    count = parts(check.max_points) // grain
    passed = parts(check.points) // grain
    tests = []
    for number in range(1, count + 1):
        claim = common.name_of(check)
        name = claim if count == 1 else f"{claim} ({number} of {count})"
        earned = number <= passed
        test = _test(check, name, earned, points(grain) if earned else 0.0)
        if number > 1:
            test["message"] = ""  # said once
        tests.append(test)
    return tests


def _test(check: CheckRow, name: str, earned: bool, score: float) -> dict[str, Any]:
    return {
        "name": _quoted(name),
        "status": "pass" if earned else "fail",
        "score": score,
        "message": _quoted(common.text_of(check))[:LONGEST],
        "test_code": _quoted(check.id),  # what was run
        "filename": _quoted(check.file or ""),
        "line_no": check.line or 0,  # 0, not absent: the reporter would print "line undefined"
        "duration": 0,
    }


def _settle(runners: list[dict[str, Any]], checks: list[CheckRow]) -> None:
    """Let the scores, added up in order as the reporter does, be the points of the checks and not 0.30000000000000004.

    A last score that makes up for the others' rounding does not always exist: nothing added to 1.97 is 3.98. Where it
    does not, all scores become multiples of the last digit that the total has, whose sums are exact.
    """
    tests = [test for runner in runners for test in runner["tests"]]
    total = points(sum(parts(check.points) for check in checks))
    earning = [test for test in tests if test["score"]]
    for digit in (0.0, math.ulp(total)):
        if not earning or _sum_in_order(tests) == total:
            return
        for test in earning[:-1] if digit else ():
            test["score"] = round(test["score"] / digit) * digit
        earning[-1]["score"] = 0.0
        earning[-1]["score"] = total - _sum_in_order(tests)


def _sum_in_order(tests: list[dict[str, Any]]) -> float:
    total = 0.0
    for test in tests:
        total += test["score"]
    return total


def _quoted(text: str) -> str:
    """Text that cannot be a workflow command in a log: those begin a line, or are spelled ##[…] anywhere."""
    return one_line(text).replace("##[", "# #[")


def _encoded(runner: dict[str, Any]) -> tuple[str, str]:
    """Its JSON, and that in base64."""
    text = msgspec.json.encode(runner)
    return text.decode(), base64.b64encode(text).decode("ascii")
