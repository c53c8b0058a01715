"""Small readers of exported files, which follow the rules of each program."""

from __future__ import annotations

import base64
import csv
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

Total = tuple[float, float]  # score and maximum


def recorded(runners: list[dict[str, Any]]) -> Total:
    """What GitHub's reporter records: scores added up, whatever they are; a runner without a maximum is skipped."""
    score = 0.0
    largest = 0.0
    for runner in runners:
        if runner["max_score"]:
            largest += runner["max_score"]
            for test in runner["tests"]:
                score += test["score"]
    return score, largest


def shown(runners: list[dict[str, Any]]) -> Total:
    """What GitHub's reporter prints: the share of tests that passed."""
    score = 0.0
    largest = 0.0
    for runner in runners:
        passed = sum(test["status"] == "pass" for test in runner["tests"])
        score += passed / len(runner["tests"]) * (runner["max_score"] or 0)
        largest += runner["max_score"] or 0
    return score, largest


def runners(folder: Path, name: str) -> list[dict[str, Any]]:
    """The runners of one submission, as a workflow gets them from its outputs."""
    outputs = (folder / name / "outputs").read_text(encoding="ascii")
    found = []
    for line in outputs.splitlines():
        id_, _, encoded = line.partition("=")
        assert re.fullmatch("[a-zA-Z0-9]+", id_)
        assert encoded == (folder / name / f"{id_}.base64").read_text(encoding="ascii")
        found.append(decoded(encoded))
        assert found[-1] == json.loads((folder / name / f"{id_}.json").read_bytes())
    return found


def decoded(encoded: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(base64.b64decode(encoded, validate=True).decode("utf-8"))
    return value


def classroom50(path: Path, most: float) -> Total:
    """Classroom 50: whole numbers, of which the share counts."""
    result = json.loads(path.read_bytes())
    for part in (result, *result["tests"]):
        assert isinstance(part["score"], int)
        assert isinstance(part["max-score"], int)
        assert 0 <= part["score"] <= part["max-score"]
    for key in ("score", "max-score"):
        assert sum(test[key] for test in result["tests"]) == result[key]
    scale = Fraction(result["max-score"]) / Fraction(str(most))
    return float(result["score"] / scale), float(result["max-score"] / scale)


def gradescope(path: Path) -> Total:
    """Gradescope: the score on top; without one it would add up the tests."""
    result = json.loads(path.read_bytes())
    added = round(sum(test["score"] for test in result["tests"]), 6)
    assert added == result["score"]
    return result["score"], round(sum(test["max_score"] for test in result["tests"]), 6)


def exercism(path: Path) -> Total:
    result = json.loads(path.read_bytes())
    told = [
        re.search(r" \(([0-9.]+) of ([0-9.]+) points\)$", test["name"]) for test in result["tests"]
    ]
    assert all(told)
    assert all(len(test["output"] or "") <= 500 for test in result["tests"])
    assert result["status"] != "error" or result["message"]
    score, largest = (
        round(sum(float(match[group]) for match in told if match), 6) for group in (1, 2)
    )
    return score, largest


def junit(path: Path) -> Total:
    suite = ElementTree.parse(path).getroot()[0]

    def added(name: str) -> float:
        return round(
            sum(
                float(each.get("value", ""))
                for each in suite.iterfind(f"testcase//*[@name='{name}']")
            ),
            6,
        )

    assert added("points") == float(suite.find("properties/*[@name='score']").get("value"))  # type: ignore[union-attr,arg-type]
    assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
    return added("points"), added("max_points")


def table(path: Path, delimiter: str = ",") -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def canvas(path: Path) -> list[Total]:
    headings, possible, *lines = table(path)
    assert headings[:5] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    assert possible[0] == "    Points Possible"
    return [(float(line[5] or 0), float(possible[5])) for line in lines]  # empty: handed in nothing


def nbgrader(path: Path) -> list[Total]:
    headings, *lines = table(path)
    score = headings.index("score")
    largest = headings.index("max_score")
    return [(float(line[score]), float(line[largest])) for line in lines]


def moodle(path: Path) -> list[Total]:
    headings, *lines = table(path)
    grade = headings.index("Grade")
    largest = headings.index("Maximum Grade")
    return [(float(line[grade]), float(line[largest])) for line in lines if line[grade]]
