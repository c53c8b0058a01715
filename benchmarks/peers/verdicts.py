"""What a tool said of a submission: full marks or not, and what failed.

Each function reads the result file of one tool.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from xml.etree import ElementTree

from benchmarks.peers.tool import Verdict

NOTHING = Verdict(None, ("no result",))
WRONG = ("failure", "error", "skipped")  # what pytest puts into a case that has not passed


def _verdict_of_tests(wanted: int, tests: dict[str, bool]) -> Verdict:
    """The verdict by what a tool says of each test: True if it passed.

    A test that is not told of has not passed, and has not failed either.
    """
    failed = tuple(name for name, passed in tests.items() if not passed)
    missing = wanted - len(tests)
    if missing > 0:
        return Verdict(None, (*failed, f"{missing} tests without a result"))
    return Verdict(not failed, failed)


def from_junit(text: str, wanted: int) -> Verdict:
    """pytest's --junit-xml: a case passed where nothing is inside it."""
    tests = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = _text_in_brackets(case.get("name", ""))
        tests[name] = all(case.find(tag) is None for tag in WRONG)
    return _verdict_of_tests(wanted, tests)


def _text_in_brackets(name: str) -> str:
    """The parameter of a test, "x" of "test[x]"; the name itself if it has none."""
    _, _, parameter = name.partition("[")
    return parameter.removesuffix("]") or name


def from_gradescope(text: str, wanted: int) -> Verdict:
    """results.json of the JSON test runner, which otter-grader writes, too: a score a test."""
    tests = {}
    for test in json.loads(text)["tests"]:
        if test.get("max_score"):
            is_passed = test["score"] >= test["max_score"]
            tests[test["name"]] = is_passed
    return _verdict_of_tests(wanted, tests)


def from_check50(text: str, wanted: int) -> Verdict:
    """`check50 --output json`: each check passed, did not, or (null) could not be made."""
    tests = {}
    for check in json.loads(text).get("results", ()):
        tests[check["name"]] = check["passed"] is True
    return _verdict_of_tests(wanted, tests)


def from_nbgrader(text: str, assignment: str) -> dict[str, Verdict]:
    """`nbgrader export`: a line for each student and assignment."""
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["assignment"] != assignment:
            continue
        score = float(row["raw_score"] or 0)
        most = float(row["max_score"])
        verdict = Verdict(True, ())
        if score != most:
            verdict = Verdict(False, (f"{score:g} of {most:g}",))
        found[row["student_id"]] = verdict
    return found


def from_dojo(text: str, functions: Iterable[str]) -> dict[str, Verdict]:
    """results.json of `dojo grade`: every check of the assignment's functions."""
    wanted = set(functions)
    found = {}
    for row in json.loads(text)["submissions"]:
        failed = []
        seen = set()
        for exercise in row["exercises"]:
            for check in exercise["checks"]:
                if check["function"] not in wanted:
                    continue
                seen.add(check["function"])
                if check["outcome"] != "passed":
                    failed.append(check["id"])
        is_complete = seen == wanted
        full = None
        if row["status"] == "graded":
            full = is_complete and not failed
        if not failed and not is_complete:
            failed = [row["status"]]
        found[row["submission"]] = Verdict(full, tuple(failed))
    return found
