"""Whatever a student pushes, every program reads the same points, and no text of a student acts as
a command.
"""

from __future__ import annotations

import json
import re

import pytest
from gpudojo.platforms.github_classroom.reporting import MOST_ANNOTATIONS

from tests.gpudojo.platforms.classroom import readers
from tests.gpudojo.platforms.classroom.checkouts import FIRST, FOURTH, KINDS, STOLEN
from tests.gpudojo.platforms.classroom.conftest import IDENTITY, Grade

LIMITS = ("--time-limit", "3")
# What such submissions come to is tested with classes, too; here it is about who reads it, as with
# the other kinds.
SLOW = ("nothing", "stubs", "half", "broken", "unreadable", "endless", "crashing")
EVERY_KIND = [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in KINDS]
POINTS = {
    "solved": 100,
    "endless": 92,
    "crashing": 92,
    "hostile": 92,
    "broken": 84,
    "nothing": 0,
    "stubs": 0,
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_reader_finds_the_same_points(classroom: Grade, kind: str) -> None:
    ran = classroom(kind, *LIMITS)
    assert ran.status == 0, ran.log
    given = readers.outputs(ran.files["GITHUB_OUTPUT"])
    recorded, shown, most, statuses = readers.reporter(given)
    assert (recorded, most) == readers.printed_total(ran.log)
    assert shown == pytest.approx(recorded, abs=1e-9)
    page = ran.files["GITHUB_STEP_SUMMARY"].removeprefix("of a step before\n")
    assert page != ran.files["GITHUB_STEP_SUMMARY"]
    assert readers.summary_total(page) == (recorded, most)
    rows = readers.table(page)
    assert [len(rows), sum(row[2] for row in rows)] == [12, most]
    assert sum(row[1] for row in rows) == pytest.approx(recorded)
    assert set(statuses) <= ({"pass"} if kind == "solved" else {"pass", "fail"})
    assert (recorded == 100) == (kind == "solved")
    assert ("fail" in statuses) == (kind != "solved")
    assert max(map(len, given.values())) < 131_072 - 100, "an environment variable holds no more"


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_classroom_50_reads_whole_numbers_that_add_up(classroom: Grade, kind: str) -> None:
    ran = classroom(kind, *LIMITS)
    result = json.loads((ran.out / "result.json").read_bytes())
    assert result["schema"] == "classroom50/result/v1"
    assert (result["classroom"], result["assignment"], result["owner"]) == (
        "gpu-course",
        "day8",
        "alice",
    )
    assert (result["submission"], result["commit"]) == (
        IDENTITY["SUBMISSION_TAG"],
        IDENTITY["COMMIT_URL"],
    )
    assert (result["release"], result["review"]) == (
        IDENTITY["RELEASE_URL"],
        IDENTITY["COMMIT_URL"],
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result["datetime"])
    assert all(
        isinstance(part[key], int)
        for part in (result, *result["tests"])
        for key in ("score", "max-score")
    )
    for key in ("score", "max-score"):
        assert result[key] == sum(test[key] for test in result["tests"])
    score, most = readers.printed_total(ran.log)
    assert result["score"] / result["max-score"] == pytest.approx(score / most)
    assert [path.name for path in ran.out.iterdir()] == ["result.json"]


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.values[0] in POINTS])
def test_the_points_are_those_that_are_earned(classroom: Grade, kind: str) -> None:
    assert readers.printed_total(classroom(kind, *LIMITS).log) == (POINTS[kind], 100)


def test_half_done_earns_a_part(classroom: Grade) -> None:
    ran = classroom("half", *LIMITS)
    score, _ = readers.printed_total(ran.log)
    assert 52 <= score < 66
    errors = [command for command in readers.runner(ran.log).commands if command[0] == "error"]
    places = {(given["file"], given["line"]) for _, given, _ in errors}
    file = f"exercises/day8/{FOURTH}"
    source = (ran.checkout / file).read_text().splitlines()
    lines = [int(line) for name, line in places if name == file]
    assert lines
    assert all(1 <= line <= len(source) for line in lines)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_log_holds_no_command_but_ours(classroom: Grade, kind: str) -> None:
    ran = classroom(kind, *LIMITS)
    heard = readers.runner(ran.log)
    assert {name for name, _, _ in heard.commands} <= {"error", "warning", "stop-commands"}
    for level in ("error", "warning"):
        assert sum(name == level for name, _, _ in heard.commands) <= MOST_ANNOTATIONS
    for name, given, _ in heard.commands:
        if name == "error":
            assert (ran.checkout / given["file"]).is_file()
            assert given["title"]
            assert int(given["line"]) >= 1


def test_a_hostile_submission_is_quoted_and_reaches_no_file_of_github(classroom: Grade) -> None:
    ran = classroom("hostile", *LIMITS)
    assert "│ ::notice title=Autograding report::100/100" in ran.log
    tokens = re.findall(r"(?m)^::stop-commands::(\w+)$", ran.log)
    assert len(tokens) == 1
    assert len(tokens[0]) >= 32
    # also without the token, no line would be read as a command that is not ours
    bare = "\n".join(line for line in ran.log.splitlines() if tokens[0] not in line)
    assert {name for name, _, _ in readers.runner(bare).commands} <= {"error", "warning"}
    for name in ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE"):
        assert ran.files[name] == ""
    assert not any(STOLEN in text for text in ran.files.values())
    assert "100/100" not in ran.files["GITHUB_STEP_SUMMARY"].replace("Autograding report", "")[:200]
    page = ran.files["GITHUB_STEP_SUMMARY"]
    assert not re.search(r"(?<!\\)<img|(?<!\\)\*\*bold|(?<!\\)\[link", page)


def test_a_failure_stands_on_the_students_own_line(classroom: Grade) -> None:
    ran = classroom("hostile", *LIMITS)
    errors = [
        c
        for c in readers.runner(ran.log).commands
        if c[0] == "error" and c[1]["file"].endswith(FIRST)
    ]
    assert errors
    _, given, message = errors[0]
    line = (ran.checkout / given["file"]).read_text().splitlines()[int(given["line"]) - 1]
    assert "raise RuntimeError" in line
    assert "one" in message


def test_changed_files_are_reported_and_change_nothing(classroom: Grade) -> None:
    ran = classroom("tampered", *LIMITS)
    assert ran.status == 0, ran.log
    assert readers.printed_total(ran.log) == (100, 100)
    assert "the checkout was imported" not in ran.log
    told = {
        given["title"] for name, given, _ in readers.runner(ran.log).commands if name == "warning"
    }
    wheel = next((ran.checkout / "vendor").glob("*.whl")).name
    expected = {
        f"vendor/{wheel} was changed",
        ".github/workflows/classroom.yml was changed",
        "pytest.ini was changed",
        "requirements.txt was deleted",
        "conftest.py was changed",
        ".github/workflows/mine.yml was added",
        "gpudojo was added",
        "torch.py was added",
    }
    assert len(told) == MOST_ANNOTATIONS
    page = ran.files["GITHUB_STEP_SUMMARY"].replace("\\", "")
    assert "the checkout was imported" not in page
    assert "could not be tried out" not in page
    for title in expected:
        path = title.partition(" was ")[0]
        assert f"- {path} " in page, path
    assert "exercises/day8/conftest.py is not part of the release" in page
    assert {title for title in told if title.endswith(("changed", "deleted"))} == {
        title for title in expected if title.endswith(("changed", "deleted"))
    }


def test_an_untouched_repository_has_nothing_changed(classroom: Grade) -> None:
    ran = classroom("stubs", *LIMITS)
    assert "differ from the release" not in ran.files["GITHUB_STEP_SUMMARY"]
    assert not [c for c in readers.runner(ran.log).commands if c[0] == "warning"]
