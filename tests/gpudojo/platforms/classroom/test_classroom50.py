"""The bundle for Classroom 50 grades a checkout with what lies in it, and gives nothing away."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.release import leaks

from tests.gpudojo.platforms.classroom.checkouts import lay_out
from tests.gpudojo.platforms.classroom.conftest import IDENTITY, REFERENCE, bare


@pytest.fixture(scope="module")
def bundle(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("classroom50") / "day8"
    done = CliRunner().invoke(main, ["release", "classroom50", str(released), str(target)])
    assert done.exit_code == 0, done.output
    return target


def run(bundle: Path, checkout: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """As the runner does: in the checkout, with the autograder from elsewhere."""
    environment = bare(
        CLASSROOM50_BUNDLE_DIR=str(bundle), GITHUB_ACTIONS="true", **IDENTITY, **more
    )
    command = [sys.executable, str(bundle / "autograder.py")]
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_it_writes_result_json_into_the_checkout(
    bundle: Path, released: Path, python: Path, tmp_path: Path
) -> None:
    checkout = tmp_path / "gpu-course-day8-alice"
    lay_out("tampered", checkout, released, [])
    (checkout / "result.json").symlink_to(tmp_path / "elsewhere")
    done = run(bundle, checkout, GPUDOJO_PYTHON=str(python))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((checkout / "result.json").read_bytes())
    assert (result["owner"], result["score"], result["max-score"]) == ("alice", 10000, 10000)
    assert not (tmp_path / "elsewhere").exists()
    assert "vendor" in done.stdout
    assert "was changed" in done.stdout


@pytest.mark.slow
def test_a_secret_and_references_in_the_bundle_are_used(
    bundle: Path, released: Path, python: Path, tmp_path: Path
) -> None:
    own = tmp_path / "bundle"
    shutil.copytree(bundle, own)
    shutil.copytree(REFERENCE, own / "reference" / "day8")
    checkout = tmp_path / "day8-alice"
    lay_out("solved", checkout, released, [])
    page = tmp_path / "summary"
    done = run(
        own, checkout, GPUDOJO_PYTHON=str(python), DOJO_SEED="hush", GITHUB_STEP_SUMMARY=str(page)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((checkout / "result.json").read_bytes())["score"] == 10000
    assert "--seed" not in page.read_text().replace("\\", "")
    assert "hush" not in page.read_text() + done.stdout + done.stderr


def test_a_wheel_that_is_not_the_released_one_grades_nobody(bundle: Path, tmp_path: Path) -> None:
    own = tmp_path / "bundle"
    shutil.copytree(bundle, own)
    next(own.glob("*.whl")).write_bytes(b"PK another")
    done = run(own, tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("::error title=The grader is missing::")
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_the_bundle_is_the_same_bytes_each_time_and_shows_no_solution(
    bundle: Path, released: Path, tmp_path: Path
) -> None:
    assert (
        CliRunner()
        .invoke(main, ["release", "classroom50", str(released), str(tmp_path / "b")])
        .exit_code
        == 0
    )
    files = {path.name: path.read_bytes() for path in bundle.iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert leaks.find_leaks(files, REFERENCE) == []
    ast.parse(files["autograder.py"])


def test_what_is_no_release_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "exercises" / "day8").mkdir(parents=True)
    done = CliRunner().invoke(
        main, ["release", "classroom50", str(tmp_path), str(tmp_path / "out")]
    )
    assert done.exit_code == 1
    assert "was not made by `dojo release student`" in done.output
    assert os.listdir(tmp_path) == ["exercises"]
