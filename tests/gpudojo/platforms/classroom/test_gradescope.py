"""The zip for Gradescope, unpacked and run as there: whatever is handed in, results.json is valid
and says why.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.results import (
    OUTPUT_HELD_BACK,
    CheckRow,
    ClassResults,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
)
from gpudojo.platforms import Options, _bundles, exporter_of
from gpudojo.platforms import _autograder as harness
from gpudojo.release import recording

from tests.gpudojo.platforms.classroom.checkouts import FIRST, REFERENCE
from tests.gpudojo.platforms.classroom.conftest import ROOT, bare, environment_at
from tests.sharing import once

VISIBILITIES = {"hidden", "after_due_date", "after_published", "visible"}


@dataclass(frozen=True)
class Autograder:
    """A folder as /autograder is there, once setup.sh has run."""

    root: Path
    archive: bytes

    def run(self, files: dict[str, bytes], **more: str) -> tuple[dict[str, Any], str]:
        for path in sorted((self.root / "submission").glob("*")):
            path.unlink()
        for name, data in files.items():
            (self.root / "submission" / name).write_bytes(data)
        command = [str(self.root / "run_autograder")]
        environment = bare(GPUDOJO_ROOT=str(self.root), **more)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, cwd="/"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return valid(self.root / "results" / "results.json"), done.stdout + done.stderr

    def fails(self) -> str:
        """What the instructor reads where the grader itself fails.

        Gradescope gets no result and records no score.
        """
        command = [str(self.root / "run_autograder")]
        (self.root / "results" / "results.json").write_text('{"score": 100}')
        environment = bare(GPUDOJO_ROOT=str(self.root))
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, cwd="/"
        )
        assert done.returncode != 0
        assert not (self.root / "results" / "results.json").exists()
        return done.stdout + done.stderr


def valid(path: Path) -> dict[str, Any]:
    """What Gradescope reads, by its rules."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(result["score"], int | float)
    assert set(result) <= {
        *("score", "execution_time", "output", "output_format", "test_output_format", "visibility"),
        *("stdout_visibility", "extra_data", "tests", "leaderboard"),
    }
    for test in result["tests"]:
        assert test["status"] in ("passed", "failed")
        assert 0 <= test["score"] <= test["max_score"]
        assert test["visibility"] in VISIBILITIES
    if result["tests"]:
        assert result["score"] == pytest.approx(sum(test["score"] for test in result["tests"]))
    return result


@pytest.fixture(scope="module")
def autograder(tmp_path_factory: pytest.TempPathFactory) -> Autograder:
    root = tmp_path_factory.mktemp("autograder")
    data = once(
        tmp_path_factory,
        "gradescope",
        lambda _: _bundles.gradescope_zip(ROOT, "day8", "a secret"),
    )
    for name in ("source", "submission", "results"):
        (root / name).mkdir()
    subprocess.run(["python3", "-c", UNZIP, str(root / "source")], input=data, check=True)
    (root / "run_autograder").write_bytes((root / "source" / "run_autograder").read_bytes())
    (root / "run_autograder").chmod(0o755)
    environment_at(root / "gpudojo")  # with torch and the rest, which setup.sh then need not fetch
    script = str(root / "source" / "setup.sh")
    done = subprocess.run(
        [script], env=bare(GPUDOJO_ROOT=str(root)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return Autograder(root, data)


# with the modes that the zip gives to files, as `unzip` sets them
UNZIP = """
import io, os, sys, zipfile
with zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read())) as archive:
    for entry in archive.infolist():
        os.chmod(archive.extract(entry, sys.argv[1]), entry.external_attr >> 16 & 0o777)
"""


def solutions() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in REFERENCE.glob("*.py")}


def test_a_solved_submission_gets_all_points(autograder: Autograder) -> None:
    result, said = autograder.run(solutions())
    assert result["score"] == 100, said
    assert sum(test["max_score"] for test in result["tests"]) == pytest.approx(100)
    assert "submission: 100 of 100 points" in said
    assert "Isolation layers missing in this container:" in said
    assert (autograder.root / "source" / "evidence").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_one_endless_function_costs_its_own_points(autograder: Autograder) -> None:
    # and looks for the evidence that it is judged by
    folder = autograder.root / "source" / "evidence"
    endless = f"""
import os
refused = 0
try:
    print(os.listdir({str(folder)!r}))
except OSError as error:
    refused = error.errno
# ENOENT where the submission has a file system of its own, EACCES where the container allows none
assert refused in (2, 13)
print("it was refused")
def select_device(prefer=None):
    while True:
        pass
"""
    result, said = autograder.run(solutions() | {FIRST: endless.encode()}, GPUDOJO_SECONDS="3")
    assert result["score"] == 92, said
    assert "day8.mp" not in json.dumps(result)
    assert OUTPUT_HELD_BACK in result["output"]
    assert any("3 seconds" in test["output"] for test in result["tests"])


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="none"),
        pytest.param({FIRST: b"\xff\xfe\0 no text"}, id="binary"),
        pytest.param({"essay.docx": b"PK"}, id="docx", marks=pytest.mark.slow),
    ],
)
def test_nothing_that_can_be_graded_is_no_points_and_a_reason(
    autograder: Autograder, files: dict[str, bytes]
) -> None:
    result, said = autograder.run(files)
    assert result["score"] == 0, said
    assert result["output"].startswith("0 of 100 points")


def test_a_grader_that_fails_leaves_no_score(autograder: Autograder) -> None:
    evidence = autograder.root / "source" / "evidence" / "day8.mp"
    data = evidence.read_bytes()
    try:
        evidence.write_bytes(b"no evidence")
        assert "The grader could not run: this is not evidence" in autograder.fails()
    finally:
        evidence.write_bytes(data)


def test_a_grader_that_does_not_even_start_leaves_no_score(autograder: Autograder) -> None:
    python = autograder.root / "gpudojo" / "bin" / "python"
    python.rename(python.with_name("gone"))
    try:
        autograder.fails()
    finally:
        python.with_name("gone").rename(python)


@pytest.mark.parametrize(
    ("metadata", "points"),
    [
        ('{"id": 1, "assignment": {"title": "Day 8", "total_points": "20.0"}}', 20.0),
        ('{"assignment": {"total_points": 7.5}}', 7.5),
        ('{"assignment": {"total_points": "0.0"}}', None),
        ('{"assignment": {"total_points": null}}', None),
        ('{"assignment": {}}', None),
        ("torn", None),
        (None, None),
    ],
)
def test_the_assignment_s_points_are_gradescope_s(
    tmp_path: Path, metadata: str | None, points: float | None
) -> None:
    path = tmp_path / "submission_metadata.json"
    if metadata is not None:
        path.write_text(metadata)
    assert harness.assignment_points(path) == points
    checks = [
        CheckRow("01_x::f::c0", "f", Outcome.PASSED, 30.0, 30.0),
        CheckRow("01_x::f::c1", "f", Outcome.FAILED, 0.0, 30.0),
    ]
    row = SubmissionRow(
        "ada", SubmissionStatus.GRADED, 30.0, 60.0, [ExerciseRow("01_x", "X", 30.0, 60.0, checks)]
    )
    header = ClassResults("day8", "virtual", "2.13.0", "0.1.0", 60.0)
    options = Options(submission="ada")
    exporter_of("gradescope")(header, [harness.scale_row(row, points)], tmp_path, options)
    result = valid(tmp_path / "results.json")
    assert result["score"] == (points or 60.0) / 2
    assert sum(test["max_score"] for test in result["tests"]) == (points or 60.0)


def test_the_zip_holds_two_scripts_no_reference_and_the_same_bytes(
    autograder: Autograder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(io.BytesIO(autograder.archive)) as archive:
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
        assert {entry.date_time for entry in archive.infolist()} == {_bundles.ZIP_DATE}
        wheel = next(name for name in modes if name.endswith(".whl"))
        inner = zipfile.ZipFile(io.BytesIO(archive.read(wheel))).namelist()
        evidence = archive.read("evidence/day8.mp")
    assert {name for name, mode in modes.items() if mode & 0o111} == {"setup.sh", "run_autograder"}
    assert sorted(modes) == sorted(
        ["setup.sh", "run_autograder", "requirements.txt", "grader.txt", "evidence/day8.mp", wheel]
    )
    assert not [name for name in inner if "reference/" in name or name.endswith(".mp")]
    # That the evidence is recorded to the same bytes is tested with the students' release.
    monkeypatch.setattr(recording, "record_evidence", lambda *_: evidence)
    assert _bundles.gradescope_zip(ROOT, "day8", "a secret") == autograder.archive


def test_another_secret_is_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def recorded(reference: Path, name: str, seeds: tuple[int, ...]) -> bytes:
        asked.append(seeds)
        return b"evidence"

    monkeypatch.setattr(recording, "record_evidence", recorded)
    monkeypatch.setattr(_bundles, "build_wheel", lambda *_: ("grader.whl", b""))
    for secret in ("one", "two", "one", None):
        _bundles.gradescope_zip(ROOT, "day8", secret)
    assert asked[0] == asked[2] != asked[1]
    assert asked[3] == (PUBLIC_SEEDS[-1],)


def test_bad_input_is_a_sentence_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recording, "record_evidence", lambda *_: b"evidence")
    (tmp_path / "file").write_text("")
    for options, said in (
        (["--out", "autograder.tar"], "does not end in .zip"),
        (["--out", "file/autograder.zip"], "cannot write file/autograder.zip"),
        (["--root", str(tmp_path)], "there is no folder"),
    ):
        done = CliRunner().invoke(main, ["release", "gradescope", *options])
        assert done.exit_code in (1, 2)
        assert said in done.output, done.output
    assert os.listdir(tmp_path) == ["file"]
