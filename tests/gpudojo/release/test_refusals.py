"""A release that cannot be made is refused in one sentence, and nothing is left half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import CannotRelease
from gpudojo.platforms.github_classroom import workflow
from gpudojo.release import recording, student, wheel

from .conftest import ROOT

EXERCISE = "04_modifying_training_loop_gpu.py"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The references are not run, unless a test is about that."""
    if "references_run" not in request.fixturenames:
        monkeypatch.setattr(recording, "record_evidence", lambda *given: b"evidence")


@pytest.fixture
def references_run() -> None:
    """For tests that are about that."""


def refused(target: Path, root: Path = ROOT) -> str:
    """What `dojo release student` says; it must be one sentence, and leave nothing behind."""
    before = sorted(target.parent.rglob("*")) if target.parent.is_dir() else None
    done = CliRunner().invoke(main, ["release", "student", str(target), "--root", str(root)])
    assert done.exit_code == 1, done.output
    assert done.output.startswith("Error: ")
    assert done.output.count("\n") == 1
    assert (sorted(target.parent.rglob("*")) if target.parent.is_dir() else None) == before
    return done.output.removeprefix("Error: ").strip()


def test_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / "out" / name).mkdir(parents=True)
    said = refused(tmp_path / "out")
    assert said == (
        f"{tmp_path / 'out'} is not empty (it has a, b, c, …); name a folder that does not "
        "exist yet"
    )


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    assert "already exists and is not a folder" in refused(tmp_path / "out")


@pytest.mark.slow
def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    assert refused(tmp_path / "file" / "inside" / "out").startswith("cannot write ")


def test_a_disk_that_fills_up_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes
    written = []

    def full(self: Path, data: bytes) -> int:
        if self.name == "b":
            raise OSError(28, "No space left on device")
        written.append(self)
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CannotRelease, match="No space left on device"):
        student.write_new_folder({"a": b"1", "deep/b": b"2"}, tmp_path / "new" / "out")
    assert written
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\\b", ""])
def test_a_path_that_leads_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(CannotRelease, match="is not a path inside"):
        student.write_new_folder({name: b""}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    student.write_new_folder({"deep/a.txt": b"1"}, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "deep" / "a.txt").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    # BEGIN SOLUTION\n",
            "    # BEGIN SOLUTON\n",
            "the markers of a solution do not match: ",
        ),
        ("    # END SOLUTION\n", "", "a solution begins and does not end"),
        ("    # BEGIN SOLUTION\n", "", "a solution ends that has not begun"),
    ],
)
def test_markers_that_do_not_match(
    tmp_path: Path, copied_reference: Path, old: str, new: str, said: str
) -> None:
    path = copied_reference / EXERCISE
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    assert said in refused(tmp_path / "out", copied_reference.parents[1])


def test_no_markers_at_all(tmp_path: Path, copied_reference: Path) -> None:
    path = copied_reference / EXERCISE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "SOLUTION" not in line), encoding="utf-8")
    said = refused(tmp_path / "out", copied_reference.parents[1])
    assert said == f"{path} has no solution markers: students would get the solution"


def test_markers_around_one_function_of_two(tmp_path: Path, copied_reference: Path) -> None:
    path = copied_reference / "02_moving_model_to_device.py"
    text = path.read_text(encoding="utf-8")
    for marker in ("# BEGIN SOLUTION", "# END SOLUTION"):
        text = text.replace(f"    {marker}\n", "", 1)
    path.write_text(text, encoding="utf-8")
    said = refused(tmp_path / "out", copied_reference.parents[1])
    assert said == f"{path}: there are no solution markers around the solution of `move_model`"


def test_a_reference_without_a_function_of_the_exercise(
    tmp_path: Path, copied_reference: Path
) -> None:
    path = copied_reference / "02_moving_model_to_device.py"
    text = path.read_text(encoding="utf-8").replace("def move_model(", "def move_models(")
    path.write_text(text, encoding="utf-8")
    said = refused(tmp_path / "out", copied_reference.parents[1])
    assert said == f"{path} has no `move_model`; did you mean move_models?"


def test_a_reference_that_is_missing(tmp_path: Path, copied_reference: Path) -> None:
    (copied_reference / EXERCISE).unlink()
    assert (
        refused(tmp_path / "out", copied_reference.parents[1])
        == f"{copied_reference / EXERCISE} is missing"
    )


@pytest.mark.usefixtures("references_run")
def test_a_reference_that_fails_its_own_checks(tmp_path: Path, copied_reference: Path) -> None:
    path = copied_reference / "01_checking_device.py"
    text = path.read_text(encoding="utf-8").replace(
        "    # BEGIN SOLUTION\n", "    # BEGIN SOLUTION\n    return 'cuda'\n", 1
    )
    path.write_text(text, encoding="utf-8")
    said = refused(tmp_path / "out", copied_reference.parents[1])
    assert said.startswith(
        "01_checking_device.py: `select_device`: the reference does not pass its own check "
    )


@pytest.mark.usefixtures("references_run")
def test_a_reference_that_cannot_be_run(tmp_path: Path, copied_reference: Path) -> None:
    path = copied_reference / "01_checking_device.py"
    path.write_text(
        "import a_module_nobody_has\n" + path.read_text(encoding="utf-8"), encoding="utf-8"
    )
    said = refused(tmp_path / "out", copied_reference.parents[1])
    assert said.startswith(
        "01_checking_device.py: `select_device`: the reference solution of `select_device` does "
        "not run in "
    )
    assert "a_module_nobody_has" in said


def test_a_platform_file_that_gives_a_solution_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = b"loss = loss_fn(model(inputs), targets)\n"
    monkeypatch.setattr(workflow, "seal", lambda files, name: {"notes.md": line})
    said = refused(tmp_path / "out")
    assert said.startswith(
        "nothing was written, because students would get a solution: notes.md shows line "
    )
    assert EXERCISE in said


def test_where_gpudojo_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> NoReturn:
        raise wheel.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(wheel.importlib.metadata, "distribution", find)
    assert refused(tmp_path / "out").startswith("gpudojo is not installed in this Python")


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release asks for none: a socket would be an error."""
    import socket

    def none(*given: Any, **named: Any) -> Any:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", none)
    monkeypatch.setattr(socket, "create_connection", none)
    done = CliRunner().invoke(
        main, ["release", "student", str(tmp_path / "out"), "--root", str(ROOT)]
    )
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "out" / "exercises" / "day8").glob("*.py"))) == len(
        exercises_of("day8")
    )
