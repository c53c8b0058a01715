"""What did a tool say of a submission? Its own result file, read into full marks or not, and what failed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from xml.etree import ElementTree

from benchmarks.peers.tool import Verdict

NOTHING = Verdict(None, ("no result",))
WRONG = ("failure", "error", "skipped")  # what pytest puts into a case that has not passed


def _of(wanted: int, tests: dict[str, bool]) -> Verdict:
    """From what a tool says of each test. A test that is not told of has not passed, and has not failed either."""
    failed = tuple(name for name, passed in tests.items() if not passed)
    if len(tests) < wanted:
        return Verdict(None, (*failed, f"{wanted - len(tests)} tests without a result"))
    return Verdict(not failed, failed)


def from_junit(text: str, wanted: int) -> Verdict:
    """pytest's --junit-xml: a case passed where nothing is inside it."""
    cases = ElementTree.fromstring(text).iter("testcase")
    tests = {
        _in_brackets(c.get("name", "")): not any(c.find(tag) is not None for tag in WRONG)
        for c in cases
    }
    return _of(wanted, tests)


def _in_brackets(name: str) -> str:
    return name.partition("[")[2].removesuffix("]") or name


def from_gradescope(text: str, wanted: int) -> Verdict:
    """results.json of the JSON test runner, which otter-grader writes, too: a score for each test."""
    tests = [test for test in json.loads(text)["tests"] if test.get("max_score")]
    return _of(wanted, {test["name"]: test["score"] >= test["max_score"] for test in tests})


def from_check50(text: str, wanted: int) -> Verdict:
    """`check50 --output json`: each check passed, did not, or (null) could not be made."""
    return _of(
        wanted,
        {check["name"]: check["passed"] is True for check in json.loads(text).get("results", ())},
    )


def from_nbgrader(text: str, assignment: str) -> dict[str, Verdict]:
    """`nbgrader export`: a line for each student and assignment."""
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["assignment"] == assignment:
            score = float(row["raw_score"] or 0)
            most = float(row["max_score"])
            found[row["student_id"]] = Verdict(
                score == most, () if score == most else (f"{score:g} of {most:g}",)
            )
    return found


def from_dojo(text: str, functions: Iterable[str]) -> dict[str, Verdict]:
    """results.json of `dojo grade`: every check of the assignment's functions."""
    wanted = set(functions)
    found = {}
    for row in json.loads(text)["submissions"]:
        checks = [
            check
            for exercise in row["exercises"]
            for check in exercise["checks"]
            if check["function"] in wanted
        ]
        failed = tuple(check["id"] for check in checks if check["outcome"] != "passed")
        seen = {check["function"] for check in checks} == wanted
        full = not failed and seen if row["status"] == "graded" else None
        found[row["submission"]] = Verdict(full, failed or (() if seen else (row["status"],)))
    return found
