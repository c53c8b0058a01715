"""Small readers of exported files, which follow the rules of each program.

A format has one function here, `@reads("NAME")`: it gets the folder that was exported to and the
class, and returns what the program would record for each submission. `test_totals.py` compares.
"""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpudojo.model.results import ClassResults
from gpudojo.platforms._files import file_names

Total = tuple[float, float]  # score and maximum
Reader = Callable[[Path, ClassResults], list[Total]]
READERS: dict[str, Reader] = {}


def reads(format_: str) -> Callable[[Reader], Reader]:
    """Register the reader of a format; a second one is refused."""

    def register(reader: Reader) -> Reader:
        assert format_ not in READERS
        READERS[format_] = reader
        return reader

    return register


def total_recorded_by_github(runners: list[dict[str, Any]]) -> Total:
    """What GitHub's reporter records: scores added up, whatever they are.

    A runner without a maximum is skipped.
    """
    score = 0.0
    largest = 0.0
    for runner in runners:
        if runner["max_score"]:
            largest += runner["max_score"]
            for test in runner["tests"]:
                score += test["score"]
    return score, largest


def total_printed_by_github(runners: list[dict[str, Any]]) -> Total:
    """What GitHub's reporter prints: the share of tests that passed."""
    score = 0.0
    largest = 0.0
    for runner in runners:
        passed = sum(test["status"] == "pass" for test in runner["tests"])
        score += passed / len(runner["tests"]) * (runner["max_score"] or 0)
        largest += runner["max_score"] or 0
    return score, largest


def read_runners(folder: Path, name: str) -> list[dict[str, Any]]:
    """The runners of one submission, as a workflow gets them from its outputs."""
    outputs = (folder / name / "outputs").read_text(encoding="ascii")
    found = []
    for line in outputs.splitlines():
        id_, _, encoded = line.partition("=")
        assert re.fullmatch("[a-zA-Z0-9]+", id_)
        assert encoded == (folder / name / f"{id_}.base64").read_text(encoding="ascii")
        found.append(decode_runner(encoded))
        assert found[-1] == json.loads((folder / name / f"{id_}.json").read_bytes())
    return found


def decode_runner(encoded: str) -> dict[str, Any]:
    """The JSON of a runner, from base64."""
    value: dict[str, Any] = json.loads(base64.b64decode(encoded, validate=True).decode("utf-8"))
    return value


@reads("github_classroom")
def _github_classroom(folder: Path, results: ClassResults) -> list[Total]:
    totals = []
    for name in file_names(results.submissions):
        whole = json.loads((folder / f"{name}.json").read_bytes())
        of_exercises = total_recorded_by_github(read_runners(folder, name))
        assert total_recorded_by_github([whole])[0] == of_exercises[0]
        totals.append(total_recorded_by_github([whole]))
    return totals


@reads("classroom50")
def _classroom50(folder: Path, results: ClassResults) -> list[Total]:
    """Whole numbers, of which the share counts."""
    totals = []
    for name, row in zip(file_names(results.submissions), results.submissions, strict=True):
        result = json.loads((folder / name / "result.json").read_bytes())
        for part in (result, *result["tests"]):
            assert isinstance(part["score"], int)
            assert isinstance(part["max-score"], int)
            assert 0 <= part["score"] <= part["max-score"]
        for key in ("score", "max-score"):
            assert sum(test[key] for test in result["tests"]) == result[key]
        scale = Fraction(result["max-score"]) / Fraction(str(row.max_score))
        totals.append((float(result["score"] / scale), float(result["max-score"] / scale)))
    return totals


@reads("gradescope")
def _gradescope(folder: Path, results: ClassResults) -> list[Total]:
    """The score on top; without one Gradescope would add up the tests."""
    totals = []
    for name in file_names(results.submissions):
        result = json.loads((folder / name / "results.json").read_bytes())
        assert _sum_of(result["tests"], "score") == result["score"]
        totals.append((result["score"], _sum_of(result["tests"], "max_score")))
    return totals


@reads("prairielearn")
def _prairielearn(folder: Path, results: ClassResults) -> list[Total]:
    """A share of the points; of what could not be read, nothing is recorded."""
    totals = []
    for name, row in zip(file_names(results.submissions), results.submissions, strict=True):
        result = json.loads((folder / name / "results.json").read_bytes())
        if not result["gradable"]:
            totals.append((row.score, row.max_score))
            continue
        assert 0 <= result["score"] <= 1
        maximum = _sum_of(result["tests"], "max_points")
        totals.append((round(result["score"] * maximum, 6), maximum))
    return totals


@reads("autolab")
def _autolab(folder: Path, results: ClassResults) -> list[Total]:
    """Scores in the last line; the problems of the assessment know their maxima."""
    totals = []
    for name, row in zip(file_names(results.submissions), results.submissions, strict=True):
        lines = (folder / name / "feedback.txt").read_text(encoding="utf-8").splitlines()
        scores = json.loads(lines[-1])["scores"]
        totals.append((round(sum(scores.values()), 6), row.max_score))
    return totals


@reads("exercism")
def _exercism(folder: Path, results: ClassResults) -> list[Total]:
    """The names of the tests tell their points."""
    totals = []
    for name in file_names(results.submissions):
        result = json.loads((folder / name / "results.json").read_bytes())
        assert result["status"] != "error" or result["message"]
        score = 0.0
        maximum = 0.0
        for test in result["tests"]:
            points = re.search(r" \(([0-9.]+) of ([0-9.]+) points\)$", test["name"])
            assert points is not None
            score += float(points[1])
            maximum += float(points[2])
            assert len(test["output"] or "") <= 500
        totals.append((round(score, 6), round(maximum, 6)))
    return totals


@reads("junit")
def _junit(folder: Path, results: ClassResults) -> list[Total]:
    totals = []
    for name in file_names(results.submissions):
        suite = ElementTree.parse(folder / f"{name}.xml").getroot()[0]
        points = _sum_of_properties(suite, "points")
        score = suite.find("properties/*[@name='score']")
        assert score is not None
        assert points == float(score.get("value", ""))
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
        totals.append((points, _sum_of_properties(suite, "max_points")))
    return totals


@reads("canvas")
def _canvas(folder: Path, results: ClassResults) -> list[Total]:
    headings, possible, *lines = read_csv(folder / "gradebook.csv")
    assert headings[:5] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    assert possible[0] == "    Points Possible"
    return [(float(line[5] or 0), float(possible[5])) for line in lines]  # empty: handed in nothing


@reads("nbgrader")
def _nbgrader(folder: Path, results: ClassResults) -> list[Total]:
    headings, *lines = read_csv(folder / "grades.csv")
    score = headings.index("score")
    maximum = headings.index("max_score")
    return [(float(line[score]), float(line[maximum])) for line in lines]


def totals_of_moodle(path: Path) -> list[Total]:
    """The lines of a worksheet that have a grade."""
    headings, *lines = read_csv(path)
    grade = headings.index("Grade")
    maximum = headings.index("Maximum Grade")
    return [(float(line[grade]), float(line[maximum])) for line in lines if line[grade]]


def read_csv(path: Path, delimiter: str = ",") -> list[list[str]]:
    """The cells of a table, line by line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def _sum_of(tests: list[dict[str, Any]], key: str) -> float:
    return round(sum(test[key] for test in tests), 6)


def _sum_of_properties(suite: ElementTree.Element, name: str) -> float:
    values = [each.get("value", "") for each in suite.iterfind(f"testcase//*[@name='{name}']")]
    return round(sum(map(float, values)), 6)
