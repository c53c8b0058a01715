"""Bundles for PrairieLearn and Autolab, unpacked and run as there, with what each platform requires
of them.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.cli.release import IMAGE
from gpudojo.model.catalogue import exercises_of
from gpudojo.platforms import _autograder, _bundles
from gpudojo.release import recording

from tests.gpudojo.platforms.classroom.checkouts import FIRST, REFERENCE
from tests.gpudojo.platforms.classroom.conftest import ROOT, bare, environment_at
from tests.sharing import once


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    data = once(
        tmp_path_factory,
        "gradescope",
        lambda _: _bundles.gradescope_zip(ROOT, "day8", "a secret"),
    )
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read("evidence/day8.mp")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, evidence: bytes) -> dict[str, Path]:
    """The folders that the commands write."""
    folder = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "record_evidence", lambda *_: evidence)
        for name in ("prairielearn", "autolab"):
            done = CliRunner().invoke(
                main, ["release", name, str(folder / name), "--root", str(ROOT)]
            )
            assert done.exit_code == 0, done.output
            assert "docker build -t gpudojo-day8" in done.output
    return {name: folder / name for name in ("prairielearn", "autolab")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, made: dict[str, Path]) -> Path:
    """/opt/gpudojo of an image, once setup.sh has run."""
    folder = tmp_path_factory.mktemp("opt")
    environment_at(
        folder / "gpudojo"
    )  # with torch and the rest, which setup.sh then need not fetch
    shutil.copytree(made["prairielearn"] / "image" / "source", folder / "source")
    command = ["bash", str(folder / "source" / "setup.sh")]
    done = subprocess.run(
        command, env=bare(GPUDOJO_ROOT=str(folder)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def run(script: list[str], folder: Path, home: Path) -> str:
    environment = bare(GPUDOJO_ROOT=str(home), GPUDOJO_GRADE=str(folder))
    done = subprocess.run(
        script, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    return done.stdout


def prairielearn(made: Path, files: dict[str, bytes], folder: Path, home: Path) -> dict[str, Any]:
    """What PrairieLearn reads of a submission, by its rules."""
    tests = folder / "tests"
    tests.parent.mkdir(exist_ok=True)
    if not tests.exists():
        shutil.copytree(made / "questions" / "day8" / "tests", tests)
    (folder / "student").mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / "student" / name).write_bytes(data)
    run(["bash", str(tests / "run.sh")], folder, home)
    path = folder / "results" / "results.json"
    assert path.stat().st_size < 1 << 20
    result: dict[str, Any] = json.loads(path.read_bytes())
    assert isinstance(result["gradable"], bool)
    if result["gradable"]:
        assert 0.0 <= result["score"] <= 1.0
        for test in result["tests"]:
            assert isinstance(test["points"], int | float)
            assert isinstance(test["max_points"], int | float)
            assert isinstance(test["name"] + test["message"], str)
    else:
        assert result["format_errors"]
    return result


def test_a_question_has_what_prairielearn_requires(made: dict[str, Path]) -> None:
    folder = made["prairielearn"] / "questions" / "day8"
    info = json.loads((folder / "info.json").read_bytes())
    assert {"uuid", "title", "topic", "type"} <= info.keys()
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", info["uuid"])
    options = info["externalGradingOptions"]
    assert (info["type"], info["gradingMethod"], options["entrypoint"]) == (
        "v3",
        "External",
        "/grade/tests/run.sh",
    )
    assert options["timeout"] <= 600
    page = (folder / "question.html").read_text(encoding="utf-8")
    assert all(f"{exercise.stem}.py" in page for exercise in exercises_of("day8"))
    assert "@" not in page


@pytest.mark.slow
def test_prairielearn_grades_a_submission(
    made: dict[str, Path], tmp_path: Path, home: Path
) -> None:
    grade = tmp_path / "grade"
    result = prairielearn(
        made["prairielearn"], {FIRST: (REFERENCE / FIRST).read_bytes()}, grade, home
    )
    assert result["score"] == 0.08
    assert sum(test["points"] for test in result["tests"]) == pytest.approx(8)
    assert sum(test["max_points"] for test in result["tests"]) == pytest.approx(100)
    # What cannot be read costs no attempt, and neither does a fault of the grader.
    (grade / "student" / FIRST).write_bytes(b"\xff\xfe\0 no text")
    assert not prairielearn(made["prairielearn"], {}, grade, home)["gradable"]
    (grade / "tests" / "evidence" / "day8.mp").write_bytes(b"no evidence")
    result = prairielearn(made["prairielearn"], {}, grade, home)
    assert result["format_errors"][0].startswith("The grader could not run: this is not evidence")


@pytest.fixture(scope="module")
def lab(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the imported assessment."""
    folder = tmp_path_factory.mktemp("lab")
    with tarfile.open(made["autolab"] / "day8.tar") as archive:
        archive.extractall(folder, filter="data")
    return folder / "day8"


def test_an_assessment_has_what_autolab_requires(lab: Path) -> None:
    assert sorted(path.name for path in lab.iterdir()) == [
        "autograde-Makefile",
        "autograde.tar",
        "day8.rb",
        "day8.yml",
    ]
    settings = json.loads((lab / "day8.yml").read_bytes())
    problems = [problem["name"] for problem in settings["problems"]]
    assert problems == [exercise.stem for exercise in exercises_of("day8")]
    assert sum(problem["max_score"] for problem in settings["problems"]) == 100
    assert "module Day8\n" in (lab / "day8.rb").read_text()


@pytest.mark.parametrize("platform", ["gradescope", "prairielearn", "autolab"])
def test_chosen_exercises_alone_are_asked_for_and_graded(
    tmp_path: Path, evidence: bytes, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(recording, "record_evidence", lambda *_: evidence)
    stems = ["01_checking_device", "12_self_assessment"]
    target = tmp_path / ("bundle.zip" if platform == "gradescope" else "bundle")
    words = ["release", platform, "--root", str(ROOT), "--only", "1", "--only", stems[1]]
    words += ["--out", str(target)] if platform == "gradescope" else [str(target)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    if platform == "gradescope":
        with zipfile.ZipFile(target) as archive:
            script = archive.read("run_autograder").decode()
    elif platform == "prairielearn":
        question = target / "questions" / "day8"
        script = (question / "tests" / "run.sh").read_text()
        files = ",".join(f"{stem}.py" for stem in stems)
        assert f'"{files}"' in (question / "question.html").read_text()
    else:
        with tarfile.open(target / "day8.tar") as assessment:
            member = assessment.extractfile("day8/day8.yml")
            assert member is not None
            problems = json.load(member)["problems"]
            grader = assessment.extractfile("day8/autograde.tar")
            assert grader is not None
            with tarfile.open(fileobj=grader) as inner:
                member = inner.extractfile("run.sh")
                assert member is not None
                script = member.read().decode()
        assert [problem["name"] for problem in problems] == stems
    assert script.count(" ".join(['"${GPUDOJO_SECONDS:-20}"', *stems])) == 1
    # What the script calls grades these.
    place = _autograder.CONTAINERS[platform]
    (tmp_path / place.submission).mkdir(parents=True)
    (tmp_path / place.submission / FIRST).write_bytes((REFERENCE / FIRST).read_bytes())
    (tmp_path / place.evidence).mkdir(parents=True)
    (tmp_path / place.evidence / "day8.mp").write_bytes(evidence)
    assert _autograder.main(platform, tmp_path, "day8", 20.0, stems) == 0
    (left,) = (tmp_path / "results").iterdir()
    if platform == "autolab":
        scores = json.loads(left.read_text().splitlines()[-1])["scores"]
        assert scores == {stems[0]: 8, stems[1]: 0}
    elif platform == "gradescope":
        assert json.loads(left.read_bytes())["score"] == 8
    else:
        assert json.loads(left.read_bytes())["score"] == pytest.approx(0.8)


@pytest.mark.parametrize("platform", ["gradescope", "prairielearn", "autolab"])
def test_a_fault_of_the_grader_is_no_grade(tmp_path: Path, platform: str) -> None:
    place = _autograder.CONTAINERS[platform]
    (tmp_path / place.submission).mkdir(parents=True)
    (tmp_path / place.submission / FIRST).write_text("x = 1\n")
    (tmp_path / place.evidence).mkdir(parents=True)
    (tmp_path / place.evidence / "day8.mp").write_bytes(b"no evidence")
    assert _autograder.main(platform, tmp_path, "day8", 5.0) == 1
    (left,) = [*(tmp_path / "results").iterdir()] or [None]
    if left is None:
        assert platform == "gradescope"
    elif platform == "prairielearn":
        assert json.loads(left.read_bytes()).keys() == {"gradable", "format_errors"}
    else:
        assert set(json.loads(left.read_text().splitlines()[-1])["scores"].values()) == {None}


@pytest.mark.slow
def test_autolab_grades_a_submission(lab: Path, tmp_path: Path, home: Path) -> None:
    settings = json.loads((lab / "day8.yml").read_bytes())
    problems = [exercise.stem for exercise in exercises_of("day8")]

    def graded(name: str, handin: bytes, torn: bool = False) -> tuple[dict[str, float | None], str]:
        """As Autolab does: three files in an empty folder, and `make`.

        The last line has the scores.
        """
        work = tmp_path / name
        work.mkdir()
        (work / settings["general"]["handin_filename"]).write_bytes(handin)
        (work / "Makefile").write_bytes((lab / "autograde-Makefile").read_bytes())
        (work / "autograde.tar").write_bytes((lab / "autograde.tar").read_bytes())
        if torn:
            script = (
                "all:\n"
                "\t@tar xf autograde.tar\n"
                "\t@echo no evidence > evidence/day8.mp\n"
                "\t@bash run.sh\n"
            )
            (work / "Makefile").write_text(script)
        *said, last = run(["make"], work, home).rstrip().splitlines()
        # Autolab quotes every word before a colon once more.
        assert re.sub(r"([a-zA-Z0-9]+):", r'"\1":', last) == last
        scores = json.loads(last)["scores"]
        assert list(scores) == problems
        return scores, "\n".join(said)

    scores, said = graded("plain", (REFERENCE / FIRST).read_bytes())
    assert sum(filter(None, scores.values())) == scores[FIRST.removesuffix(".py")] == 8
    assert "8 of 100 points" in said
    scores, said = graded("torn", (REFERENCE / FIRST).read_bytes(), torn=True)
    assert set(scores.values()) == {None}
    assert "The grader could not run: this is not evidence" in said


@pytest.mark.parametrize("name", ["prairielearn", "autolab"])
def test_an_image_holds_the_grader_and_no_evidence(made: dict[str, Path], name: str) -> None:
    image = made[name] / "image"
    files = sorted(
        path.relative_to(image).as_posix() for path in image.rglob("*") if path.is_file()
    )
    assert [file for file in files if not file.endswith(".whl")] == [
        "Dockerfile", "source/grader.txt", "source/requirements.txt", "source/setup.sh"
    ]  # fmt: skip
    assert "@" not in (image / "Dockerfile").read_text()
    assert subprocess.run(["bash", "-n", str(image / "source" / "setup.sh")]).returncode == 0


def test_torch_is_installed_without_cuda(made: dict[str, Path], tmp_path: Path) -> None:
    """By the script, with a pip that writes down what it is asked for."""
    root = tmp_path / "root"
    python = root / "gpudojo" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path / "asked"}\n')
    python.chmod(0o755)
    shutil.copytree(made["autolab"] / "image" / "source", root / "source")
    for environment, index in (
        ({}, "https://download.pytorch.org/whl/cpu"),
        ({"GPUDOJO_TORCH_INDEX": ""}, None),
    ):
        (tmp_path / "asked").write_text("")
        script = ["bash", str(root / "source" / "setup.sh")]
        subprocess.run(
            script, env=bare(GPUDOJO_ROOT=str(root), **environment), check=True, capture_output=True
        )
        asked = (tmp_path / "asked").read_text().splitlines()
        assert any(
            re.search(rf"install --quiet torch==\S+ --index-url {index}$", line) for line in asked
        ) == bool(index)
        assert sum("-r " in line for line in asked) == 2


@pytest.mark.parametrize("platform", ["prairielearn", "autolab"])
def test_a_name_that_no_image_can_have_is_refused(tmp_path: Path, platform: str) -> None:
    for name in ("a b", "x; rm", "Upper", "$(x)", "", '"'):
        done = CliRunner().invoke(
            main, ["release", platform, str(tmp_path / "made"), "--image", name]
        )
        assert done.exit_code == 2
        assert "cannot be the name of an image" in done.output
    assert not (tmp_path / "made").exists()
    for name in (
        "gpudojo",
        "gpudojo-day8:1.0",
        "registry.example.org/gpudojo-day8",
        "localhost:5000/a/b_c:latest",
    ):
        assert IMAGE.fullmatch(name)
