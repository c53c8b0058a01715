"""Small readers of what `dojo classroom` writes, which follow the rules of each program."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any

RUNNERS = [f"exercise{number:02}" for number in range(1, 13)]


@dataclass
class Heard:
    """What GitHub's runner makes of a log."""

    commands: list[tuple[str, dict[str, str], str]] = field(
        default_factory=list
    )  # (name, properties, message)
    text: list[str] = field(default_factory=list)


def runner(log: str) -> Heard:
    """Line by line, as the runner reads: `::name k=v,k=v::message`, `##[name]` anywhere, and a
    token that stops it.
    """
    heard = Heard()
    token = None
    for line in re.split(r"\r\n|\n|\r", log):
        new = re.fullmatch(r"::([\w-]+)( [^:]*)?::(.*)", line.lstrip())
        old = re.search(r"##\[([\w-]+)", line)
        if token is not None:
            if new is not None and new[1] == token:
                token = None
            else:
                heard.text.append(line)
            continue
        if new is not None:
            given = dict(
                part.split("=", 1) for part in (new[2] or "").strip().split(",") if "=" in part
            )
            heard.commands.append(
                (new[1], {k: _plain(v) for k, v in given.items()}, _plain(new[3]))
            )
            if new[1] == "stop-commands":
                token = new[3]
        elif old is not None:
            heard.commands.append((old[1], {}, line))
        else:
            heard.text.append(line)
    assert token is None, "commands were stopped and never resumed"
    return heard


def _plain(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def outputs(text: str) -> dict[str, str]:
    """What a step's $GITHUB_OUTPUT sets."""
    lines = text.splitlines()
    assert all("=" in line and "<<" not in line.partition("=")[0] for line in lines)
    found = dict(line.split("=", 1) for line in lines)
    assert len(found) == len(lines), "an output is set twice"
    return found


def reporter(given: dict[str, str]) -> tuple[float, float, float, list[str]]:
    """autograding-grading-reporter: points it records, points its table shows, the maximum, each
    runner's status.
    """
    recorded = 0.0
    shown = 0.0
    most = 0.0
    statuses = []
    for runner_id in RUNNERS:
        results: dict[str, Any] = json.loads(
            base64.b64decode(given[runner_id], validate=True).decode("utf-8")
        )
        statuses.append(results["status"])
        passed = sum(test["status"] == "pass" for test in results["tests"])
        shown += (
            passed / len(results["tests"]) * results["max_score"] if results["max_score"] else 0.0
        )
        if results["max_score"]:
            most += results["max_score"]
            for test in results["tests"]:
                recorded += test["score"]
    return recorded, shown, most, statuses


def printed_total(log: str) -> tuple[float, float]:
    """What we print ourselves."""
    (found,) = re.findall(r"(?m)^total +([0-9.]+) of +([0-9.]+)$", log)
    return float(found[0]), float(found[1])


def summary_total(page: str) -> tuple[float, float]:
    (found,) = re.findall(
        r"(?m)^\| \*\*total\*\* \| \*\*([0-9.]+)\*\* \| \*\*([0-9.]+)\*\* \|", page
    )
    return float(found[0]), float(found[1])


def table(page: str) -> list[tuple[str, float, float]]:
    """The rows of the summary's table."""
    rows = [
        line.strip("|").split(" | ")
        for line in page.splitlines()
        if line.startswith("| ") and "**" not in line
    ]
    return [
        (row[0].strip(), float(row[1]), float(row[2]))
        for row in rows
        if row[1].strip() not in ("points", "---:")
    ]
