"""What cannot be graded gets a sentence; nothing is written that could be taken for a grade."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from gpudojo.cli import main
from gpudojo.model.errors import BadClass, ForkServerFailed
from gpudojo.platforms import _autograder
from gpudojo.platforms._autograder import choose_what_to_judge_by

from tests.gpudojo.platforms.classroom import readers
from tests.gpudojo.platforms.classroom.conftest import IDENTITY

REFERENCE = Path(__file__).parents[4] / "reference" / "day8"

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in a workflow; afterwards nothing but what was there before may be there."""
    work = tmp_path / "work"
    (work / "exercises" / "day8").mkdir(parents=True)
    out = tmp_path / "out"
    out.mkdir()
    output = tmp_path / "output"
    output.touch()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    monkeypatch.delenv("DOJO_RELEASE", raising=False)

    def invoke(*options: str, folder: Path = work) -> Result:
        done = CliRunner().invoke(main, ["classroom", str(folder), "--out", str(out), *options])
        assert output.read_text() == ""
        assert os.listdir(out) == []
        return done

    return invoke


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--release", "{}"], "this is not the manifest of a release"),
        (["--release", '{"day": 8}'], "this is not the manifest of a release"),
        (["--release", "nowhere"], "there is no release at nowhere"),
        (["--release", "graders"], "was not made by `dojo release student`"),
    ],
)
def test_a_release_that_is_none(
    run: Run, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[4])
    done = run(*options)
    assert done.exit_code == 1
    ((name, given, message),) = readers.runner(done.output).commands
    assert (name, given["title"]) == ("error", "The grader could not run")
    assert said in message


def test_a_folder_that_is_not_there(run: Run, tmp_path: Path) -> None:
    done = run(folder=tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "nowhere is not a folder" in done.output


def test_a_memory_limit_that_is_none(run: Run) -> None:
    done = run("--memory-limit", "much")
    assert done.exit_code == 2
    assert "--memory-limit" in done.output


@pytest.mark.parametrize(
    "error",
    [
        ForkServerFailed("it ended", "::notice::forged"),
        OSError(28, "No space left on device"),
        ValueError("x\n::notice::forged\n##[error]y"),
    ],
)
def test_our_own_fault_is_no_grade(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(_autograder, "grade_checkout", fails)
    done = run()
    assert done.exit_code == 1
    commands = readers.runner(done.output).commands
    assert {name for name, _, _ in commands} <= {"error", "stop-commands"}
    assert sum(name == "error" for name, _, _ in commands) == 1


def test_a_folder_in_the_place_of_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gpudojo.platforms.classroom.test_telling import graded

    (tmp_path / "result.json" / "full").mkdir(parents=True)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr(_autograder, "grade_checkout", lambda *_, **__: graded("no"))
    arguments = ["classroom", str(tmp_path), "--out", str(tmp_path), "--for", "classroom50"]
    done = CliRunner(env=IDENTITY).invoke(main, arguments)
    assert done.exit_code == 1
    assert "result.json" in done.output
    assert os.listdir(tmp_path) == ["result.json"]


# What a checkout is judged by


def test_references_in_the_bundle_come_first(tmp_path: Path) -> None:
    (tmp_path / "reference" / "day8").mkdir(parents=True)
    found = choose_what_to_judge_by(
        "day8", {"CLASSROOM50_BUNDLE_DIR": str(tmp_path), "DOJO_SEED": "hush"}
    )
    assert (found.reference, found.secret) == (tmp_path / "reference" / "day8", "hush")


def test_evidence_in_the_bundle_is_used_and_a_secret_without_references_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "day8.mp").write_bytes(b"")
    found = choose_what_to_judge_by(
        "day8", {"CLASSROOM50_BUNDLE_DIR": str(tmp_path), "DOJO_SEED": "hush"}
    )
    assert (found.reference, found.evidence, found.secret) == (None, tmp_path, None)
    assert "DOJO_SEED is set" in found.note
    assert "hush" not in found.note


def test_references_in_the_checkout_are_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reference" / "day8").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert choose_what_to_judge_by("day8", {}).reference == REFERENCE  # of this clone


def test_with_nothing_to_judge_by_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpudojo

    monkeypatch.setattr(gpudojo, "__file__", str(tmp_path / "graders" / "gpudojo" / "__init__.py"))
    with pytest.raises(BadClass, match=r"--reference reference/day8$"):
        choose_what_to_judge_by("day8", {})
