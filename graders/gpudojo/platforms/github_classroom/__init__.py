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
from pathlib import Path
from typing import Any, Final

import msgspec

from gpudojo.model.results import CheckRow, SubmissionRow
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import (
    folder,
    good,
    named,
    of_exercise,
    of_submission,
    one_line,
    parts,
    points,
    save,
    text_of,
    verdict,
    whole,
)

LARGEST: Final = 120_000  # characters of base64; the system's limit is 131,072 with the variable's name
MOST: Final = 5_000  # tests
LONGEST: Final = 1_000  # characters of a message: a submission must not be able to make its own report too large


def export(results: Results, target: Path, options: Options) -> list[Path]:
    written: list[Path] = []
    too_large, uneven = 0, 0
    for name, row in named(results, options):
        runner = _runner(row, of_submission(row, options.exercises))
        uneven += not _agrees(runner)
        text = msgspec.json.encode(runner)
        written.append(save(target / f"{name}.json", text.decode()))
        encoded = _encoded(text)
        if len(encoded) <= LARGEST:
            written.append(save(target / f"{name}.base64", encoded))
        else:
            too_large += 1
            (target / f"{name}.base64").unlink(missing_ok=True)  # an older one would be taken for this one
        own = folder(target, name, options)
        outputs = []
        recorded = 0.0
        for runner_id, checks in _by_exercise(row, options):
            runner = _runner(row, checks, recorded)
            recorded = _sum_in_order(runner["tests"], recorded)
            text = msgspec.json.encode(runner)
            written.append(save(own / f"{runner_id}.json", text.decode()))
            written.append(save(own / f"{runner_id}.base64", _encoded(text)))
            outputs.append(f"{runner_id}={_encoded(text)}\n")
        written.append(save(own / "outputs", "".join(outputs)))
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


def _by_exercise(row: SubmissionRow, options: Options) -> list[tuple[str, list[CheckRow]]]:
    """Rows under the ids of runners, which may only have letters and digits."""
    runners: dict[str, list[CheckRow]] = {}
    for position, exercise in enumerate(whole(row, options.exercises), 1):
        number = exercise.exercise.partition("_")[0]
        own = f"exercise{number}" if number.isascii() and number.isdigit() else f"exercise{position:02}"
        while own in runners:
            own += "x"
        runners[own] = of_exercise(exercise, row)
    told = sum(map(len, runners.values()))
    rest = of_submission(row, options.exercises)[told:]
    if rest:
        runners["submission"] = rest
    return list(runners.items())


def _runner(row: SubmissionRow, checks: list[CheckRow], recorded: float = 0.0) -> dict[str, Any]:
    """One runner; `recorded` is what the runners before it have added up to."""
    grain = math.gcd(*(parts(number) for check in checks for number in (check.points, check.max_points)))
    largest = sum(parts(check.max_points) for check in checks)
    tests: list[dict[str, Any]] = []
    if grain and largest // grain <= MOST:
        for check in checks:
            tests += _repeated(check, grain)
    else:
        tests = [_test(check, check.id, good(check), points(parts(check.points))) for check in checks]
    _settle(tests, points(parts(recorded) + sum(parts(check.points) for check in checks)), recorded)
    return {"version": 3, "status": verdict(row, checks), "max_score": points(largest), "tests": tests}


def _repeated(check: CheckRow, grain: int) -> list[dict[str, Any]]:
    count, passed = parts(check.max_points) // grain, parts(check.points) // grain
    tests = []
    for number in range(1, count + 1):
        name = check.id if count == 1 else f"{check.id} ({number} of {count})"
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
        "message": _quoted(text_of(check))[:LONGEST],
        "test_code": "",
        "filename": _quoted(check.file or ""),
        "line_no": check.line or 0,  # 0, not absent: the reporter would print "line undefined"
        "duration": 0,
    }


def _settle(tests: list[dict[str, Any]], total: float, recorded: float) -> None:
    """Let the scores, added up in order as the reporter does, be the total and not 0.30000000000000004."""
    last = next((test for test in reversed(tests) if test["score"]), None)
    if last is None:
        return
    last["score"] = 0.0
    last["score"] = total - _sum_in_order(tests, recorded)


def _sum_in_order(tests: list[dict[str, Any]], total: float = 0.0) -> float:
    for test in tests:
        total += test["score"]
    return total


def _quoted(text: str) -> str:
    """Text that cannot be a workflow command in a log: those begin a line, or are spelled ##[…] anywhere."""
    return one_line(text).replace("##[", "# #[")


def _agrees(runner: dict[str, Any]) -> bool:
    tests = runner["tests"]
    shown = sum(test["status"] == "pass" for test in tests) / len(tests) * runner["max_score"]
    return math.isclose(shown, _sum_in_order(tests), rel_tol=1e-9, abs_tol=1e-9)


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode("ascii")
