"""The workflow is valid, installs nothing but the pinned grader, and is known by the grader that it
installs.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import ClassResults, SubmissionRow, SubmissionStatus
from gpudojo.platforms import Options, exercises_of_day, exporter_of
from gpudojo.platforms.github_classroom import workflow as workflows
from gpudojo.release import manifest as manifests

from tests.gpudojo.platforms.classroom.conftest import bare, environment_at, manifest_in

WORKFLOW = ".github/workflows/classroom.yml"
FILES = {
    "vendor/gpudojo-1.0+0a1b2c3d-py3-none-any.whl": b"PK\0wheel",
    "requirements.txt": b"torch==2.13.0\n./vendor/gpudojo-1.0+0a1b2c3d-py3-none-any.whl\n",
    "pytest.ini": b"[pytest]\n",
    **{f"exercises/day8/{exercise.stem}.py": b"" for exercise in exercises_of("day8")},
}


def parsed(text: str) -> dict[str, Any]:
    from ruamel import yaml  # which check-jsonschema brings along

    found: dict[str, Any] = yaml.YAML(typ="safe", pure=True).load(text)
    return found


@pytest.fixture
def workflow() -> str:
    return workflows.workflow_text(manifests.make_manifest(FILES, "day8"))


def test_it_validates_against_the_published_schema(released: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    done = subprocess.run([*command, str(released / WORKFLOW)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_schema_refuses_a_workflow_that_is_none(tmp_path: Path, workflow: str) -> None:
    (tmp_path / "bad.yml").write_text(
        workflow.replace("runs-on: ubuntu-24.04", "runs-at: ubuntu-24.04")
    )
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    assert (
        subprocess.run([*command, str(tmp_path / "bad.yml")], capture_output=True).returncode == 1
    )


def test_its_runners_are_those_that_the_exporter_writes(workflow: str, tmp_path: Path) -> None:
    exercises = exercises_of_day("day8")
    row = SubmissionRow("alice", SubmissionStatus.UNREADABLE, 0.0, 100.0, reason="it is not there")
    results = ClassResults("day8", "virtual", "2", "1", 100.0, submissions=[row])
    exporter_of("github_classroom")(
        results, results.submissions, tmp_path, Options(submission="alice", exercises=exercises)
    )
    written = [line.partition("=")[0] for line in (tmp_path / "outputs").read_text().splitlines()]
    assert [name for name in written if name != "submission"] == workflows.runner_ids("day8")
    *_, report = parsed(workflow)["jobs"]["run-autograding-tests"]["steps"]
    assert report["with"]["runners"].split(",") == workflows.runner_ids("day8")
    for runner in workflows.runner_ids("day8"):
        assert (
            report["env"][f"{runner.upper()}_RESULTS"] == f"${{{{ steps.grade.outputs.{runner} }}}}"
        )


def test_it_may_only_read_and_ends_in_time(workflow: str) -> None:
    found = parsed(workflow)
    assert found["permissions"] == {"contents": "read"}
    job = found["jobs"]["run-autograding-tests"]
    assert job["timeout-minutes"] <= 20
    assert found["concurrency"]["cancel-in-progress"] is True
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"(actions|classroom-resources)/[a-z-]+@v\d+", name) for name in used)
    grade = next(step for step in job["steps"] if step.get("id") == "grade")
    assert " -I -m gpudojo classroom " in grade["run"]
    assert grade["working-directory"] == "${{ runner.temp }}"


def test_the_manifest_in_it_knows_the_workflow_it_stands_in(released: Path) -> None:
    known = workflows.add_workflow(manifests.decode_manifest(manifest_in(released)))
    assert known.files[WORKFLOW] == manifests.hash_of((released / WORKFLOW).read_bytes())
    assert known == manifests.manifest_of_folder(released)
    assert manifests.find_changes(released, known) == []
    data = (released / known.wheel).read_bytes()
    assert known.files[known.wheel] == hashlib.sha256(data).hexdigest()


def test_line_ends_of_another_system_are_no_change(tmp_path: Path) -> None:
    known = manifests.make_manifest(FILES, "day8")
    for path, data in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(
            data if path.endswith(".whl") else data.replace(b"\n", b"\r\n")
        )
    assert manifests.find_changes(tmp_path, known) == []


def test_links_and_pipes_in_place_of_a_file_are_changes_and_hold_nobody_up(tmp_path: Path) -> None:
    import os

    known = manifests.make_manifest(FILES, "day8")
    (tmp_path / "vendor").symlink_to("/")
    (tmp_path / "requirements.txt").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pytest.ini")
    found = {change.path: change.what for change in manifests.find_changes(tmp_path, known)}
    assert found["requirements.txt"] == found["pytest.ini"] == "changed"
    assert found[known.wheel] == "deleted"


# The step that installs the grader, run for real


def installing(
    released: Path, checkout: Path, temp: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    steps = parsed((released / WORKFLOW).read_text())["jobs"]["run-autograding-tests"]["steps"]
    (step,) = (step for step in steps if step["name"] == "Install the pinned grader")
    temp.mkdir()
    environment_at(temp / "dojo")  # with what it needs, which is not fetched again
    given = {name: str(value) for name, value in step["env"].items() if "${{" not in str(value)}
    environment = (
        bare(
            RUNNER_TEMP=str(temp),
            GITHUB_WORKSPACE=str(checkout),
            WHEEL_URL="",
            PIP_NO_COMPILE="1",
            **given,
        )
        | more
    )
    script = step["run"].replace("python -I -m venv", "true")
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=temp, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def checkout(released: Path, tmp_path: Path) -> Path:
    """A repository with a history, in which the first commit is the release."""
    made = tmp_path / "day8-alice"
    shutil.copytree(released, made)
    for command in (["init", "-q"], ["add", "-A"], [*NAMED, "commit", "-q", "-m", "release"]):
        subprocess.run(["git", *command], cwd=made, check=True, env=bare())
    return made


NAMED = ["-c", "user.name=student", "-c", "user.email=student@example.org"]


def grader_in(temp: Path) -> str:
    python = str(temp / "dojo" / "bin" / "python")
    command = [python, "-I", "-m", "gpudojo", "--version"]
    done = subprocess.run(command, text=True, capture_output=True)
    return done.stdout.strip().rpartition(" ")[2]


def test_the_vendored_wheel_is_installed_by_its_hash(
    released: Path, checkout: Path, tmp_path: Path
) -> None:
    done = installing(released, checkout, tmp_path / "temp")
    assert done.returncode == 0, done.stderr
    assert grader_in(tmp_path / "temp") == json.loads(manifest_in(released))["wheel"].split("-")[1]


@pytest.mark.slow
def test_a_changed_wheel_is_passed_over_for_the_one_in_the_history(
    released: Path, checkout: Path, tmp_path: Path
) -> None:
    wheel = json.loads(manifest_in(released))["wheel"]
    (checkout / wheel).write_bytes(b"PK\x03\x04 mine")
    subprocess.run(["git", *NAMED, "commit", "-qam", "mine"], cwd=checkout, check=True, env=bare())
    done = installing(released, checkout, tmp_path / "temp")
    assert done.returncode == 0, done.stderr
    assert grader_in(tmp_path / "temp") == wheel.split("-")[1]


def test_without_the_pinned_wheel_nothing_is_installed(
    released: Path, checkout: Path, tmp_path: Path
) -> None:
    wheel = json.loads(manifest_in(released))["wheel"]
    shutil.rmtree(checkout / ".git")
    (checkout / wheel).write_bytes(b"PK\x03\x04 mine")
    done = installing(released, checkout, tmp_path / "temp")
    assert done.returncode == 1
    assert done.stdout.startswith("::error title=The grader is missing::")
    elsewhere = (released / wheel).as_uri()
    again = installing(released, checkout, tmp_path / "again", WHEEL_URL=elsewhere)
    assert again.returncode == 0, again.stderr
