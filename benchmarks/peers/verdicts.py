"""What did a tool say of a submission? Its own result file, read into full marks or not, and what failed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from xml.etree import ElementTree

from benchmarks.peers.tool import Verdict

NOTHING = Verdict(None, ("no result",))


def from_junit(text: str) -> Verdict:
    """pytest's --junit-xml."""
    cases = list(ElementTree.fromstring(text).iter("testcase"))
    if not cases:
        return NOTHING
    wrong = ("failure", "error", "skipped")
    failed = tuple(_in_brackets(c.get("name", "")) for c in cases if any(c.find(tag) is not None for tag in wrong))
    return Verdict(not failed, failed)


def _in_brackets(name: str) -> str:
    return name.partition("[")[2].removesuffix("]") or name


def from_gradescope(text: str) -> Verdict:
    """results.json of the JSON test runner: a score for each test."""
    tests = json.loads(text)["tests"]
    if not tests:
        return NOTHING
    failed = tuple(test["name"] for test in tests if test["score"] < test["max_score"])
    return Verdict(not failed, failed)


def from_check50(text: str) -> Verdict:
    """`check50 --output json`: each check passed, did not, or (null) could not be made."""
    found = json.loads(text)
    if not found.get("results"):
        return NOTHING
    failed = tuple(check["name"] for check in found["results"] if check["passed"] is not True)
    return Verdict(not failed, failed)


def from_otter(text: str, wanted: int) -> Verdict:
    """results.json in Gradescope's form; where the notebook could not be run, some tests are not there at all."""
    tests = [test for test in json.loads(text)["tests"] if test.get("max_score")]
    failed = tuple(test["name"] for test in tests if test["score"] < test["max_score"])
    if len(tests) < wanted:
        return Verdict(None, (*failed, f"{wanted - len(tests)} tests without a result"))
    return Verdict(not failed, failed)


def from_nbgrader(text: str, assignment: str) -> dict[str, Verdict]:
    """`nbgrader export`: a line for each student and assignment."""
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["assignment"] == assignment:
            score, most = float(row["raw_score"] or 0), float(row["max_score"])
            found[row["student_id"]] = Verdict(score == most, () if score == most else (f"{score:g} of {most:g}",))
    return found


def from_dojo(text: str, functions: Iterable[str]) -> dict[str, Verdict]:
    """results.json of `dojo grade`: every check of the assignment's functions."""
    wanted, found = set(functions), {}
    for row in json.loads(text)["submissions"]:
        checks = [check for exercise in row["exercises"] for check in exercise["checks"] if check["function"] in wanted]
        failed = tuple(check["id"] for check in checks if check["outcome"] != "passed")
        seen = {check["function"] for check in checks} == wanted
        full = not failed and seen if row["status"] == "graded" else None
        found[row["submission"]] = Verdict(full, failed or (() if seen else (row["status"],)))
    return found
