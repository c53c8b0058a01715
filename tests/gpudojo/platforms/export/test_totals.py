"""Every program reads the same total for the same submission."""

from __future__ import annotations

import csv
import dataclasses
import tempfile
from pathlib import Path

import pytest
from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionStatus, round_half_up
from gpudojo.model.results_file import read, write
from gpudojo.platforms import exporter_of, format_names, github_classroom, is_about_the_class
from gpudojo.platforms._files import file_names
from gpudojo.platforms.github_classroom import LARGEST
from hypothesis import given, settings

from tests.gpudojo.platforms.export import readers
from tests.gpudojo.platforms.export.classes import CLASS, OPTIONS, classes

HEADINGS = ["Identifier", "Full name", "Status", "Grade", "Maximum Grade", "Feedback comments"]


def worksheet(results: ClassResults, path: Path) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADINGS)
        for row in results.submissions:
            writer.writerow(
                [f"Participant {row.identifier}", "Ada", "Submitted", "", results.max_score, ""]
            )
    return path


TABLES = ("canvas", "nbgrader")  # what people see, too: points have two decimals


def as_shown(total: readers.Total) -> readers.Total:
    points, maximum = total
    return round_half_up(points), round_half_up(maximum)


def check_all(results: ClassResults, folder: Path) -> None:
    """Export a class in every format that has a reader, and compare what is read to the points."""
    said: list[str] = []
    options = dataclasses.replace(OPTIONS, say=said.append)
    points = [(row.score, row.max_score) for row in results.submissions]
    for format_, reader in readers.READERS.items():
        written = exporter_of(format_)(results, results.submissions, folder / format_, options)
        assert all(path.is_file() for path in written)
        assert len(set(written)) == len(written)
        assert {path for path in (folder / format_).rglob("*") if path.is_file()} == set(written)
        wanted = points
        if format_ in TABLES:
            wanted = [as_shown(total) for total in points]
        assert reader(folder / format_, results) == wanted, format_
    uneven = any("too fine" in sentence for sentence in said)
    assert not uneven or _finer_than_hundredths(results)
    for name, wanted in zip(file_names(results.submissions), points, strict=True):
        check_what_github_shows(folder / "github_classroom", name, wanted, uneven)


def check_what_github_shows(folder: Path, name: str, wanted: readers.Total, uneven: bool) -> None:
    whole = readers.json.loads((folder / f"{name}.json").read_bytes())
    of_exercises = readers.read_runners(folder, name)
    assert _close(readers.total_recorded_by_github(of_exercises), wanted)
    if not uneven:
        assert _close(readers.total_printed_by_github([whole]), wanted)
        assert _close(readers.total_printed_by_github(of_exercises), wanted)
    encoded = folder / f"{name}.base64"
    if encoded.exists():
        assert readers.decode_runner(encoded.read_text()) == whole
    else:
        assert len(readers.json.dumps(whole)) > LARGEST / 2


def test_every_format_of_a_submission_has_a_reader() -> None:
    """Moodle's has a test of its own: it fills in a worksheet."""
    of_submissions = {name for name in format_names() if not is_about_the_class(name)}
    assert of_submissions == {*readers.READERS, "moodle"}


def _finer_than_hundredths(results: ClassResults) -> bool:
    checks = [
        check
        for row in results.submissions
        for exercise in row.exercises
        for check in exercise.checks
    ]
    return any(round(check.max_points, 2) != check.max_points for check in checks)


def _close(one: readers.Total, other: readers.Total) -> bool:
    return all(abs(a - b) < 1e-9 for a, b in zip(one, other, strict=True))


@settings(max_examples=60, deadline=None)
@given(classes())
def test_every_program_reads_the_same_total(results: ClassResults) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        write(path, results, results.submissions)
        check_all(read(path), Path(folder))


def test_scores_of_github_add_up_to_the_total_and_not_nearly() -> None:
    for total in range(2, 300):
        for first in range(1, total):
            earned = [first / 100, (total - first) / 100]
            checks = [CheckRow("01_x::f::c", "f", Outcome.PASSED, each, each) for each in earned]
            runners = [
                {"max_score": each, "tests": [{"score": each}, {"score": 0.0}]} for each in earned
            ]
            github_classroom._make_sum_exact(runners, checks)
            assert readers.total_recorded_by_github(runners)[0] == total / 100
            scores = [test["score"] for runner in runners for test in runner["tests"]]
            assert scores == pytest.approx([earned[0], 0, earned[1], 0], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(classes(naming="moodle"))
def test_moodle_reads_the_same_total(results: ClassResults) -> None:
    if not results.submissions:
        return
    with tempfile.TemporaryDirectory() as folder:
        sheet = worksheet(results, Path(folder) / "sheet.csv")
        options = dataclasses.replace(OPTIONS, worksheet=(sheet,))
        (written,) = exporter_of("moodle")(
            results, results.submissions, Path(folder) / "out", options
        )
        # Who handed in nothing keeps what the worksheet has.
        graded = [row for row in results.submissions if row.status is not SubmissionStatus.ABSENT]
        assert readers.totals_of_moodle(written) == [
            (min(round_half_up(row.score), row.max_score), row.max_score) for row in graded
        ]


def test_the_class_with_everything(tmp_path: Path) -> None:
    check_all(CLASS, tmp_path)
