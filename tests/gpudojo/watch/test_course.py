"""What `dojo watch` knows of the student's files without running them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gpudojo.grading.engine import result_of
from gpudojo.model.errors import NoExercises
from gpudojo.model.exercise import Failed
from gpudojo.model.results import Outcome
from gpudojo.watch import view
from gpudojo.watch.changes import functions_to_grade
from gpudojo.watch.course import PROGRESS_FILE, Course, ExerciseWork
from gpudojo.watch.session import Session

REPOSITORY = Path(__file__).resolve().parents[3]
FILE = """\
import torch

LIMIT = 3

def helper(x):
    return x

def a(x):
    return x + 1

def b(x):
    return a(x)

def c(x):
    return x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The stubs, as a student gets them."""
    shutil.copytree(REPOSITORY / "exercises" / "day8", tmp_path / "exercises" / "day8")
    return tmp_path / "exercises" / "day8"


def passed(work: ExerciseWork) -> None:
    for function in work.exercise.functions:
        work.note_verdict(
            function.name,
            [result_of(work.exercise, function, c, Outcome.PASSED) for c in function.checks],
        )


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("return x + 1", "return x + 2", ["a", "b"]),  # b calls it
        ("return a(x)", "return a(x) + 1", ["b"]),
        ("return x + 1", "return x + 1  # the next", []),
        (
            "    return x + 1",
            "    # one more\n    return x + 1",
            ["a", "b"],
        ),  # their lines are others now; c is done
        ("    return x\n\ndef a", "    return 2 * x\n\ndef a", ["a", "b", "c"]),
        ("LIMIT = 3", "LIMIT = 4", ["a", "b", "c"]),
        ("import torch", "import torch as t", ["a", "b", "c"]),
        (
            "def c(x):\n    return x\n",
            "def c(x):\n    return -x\n\nLAST = 1\n",
            ["c", "a", "b"],
        ),  # the changed one first
        ("def c(x):\n    return x\n", "", ["c"]),
        (
            "def c(x):\n    return x\n",
            "def c(x):\n    return x\n\ndef c(x):\n    return 0\n",
            ["c"],
        ),
        (
            "def c(x):\n    return x\n",
            'def c(x):\n    return x\n\nif __name__ == "__main__":\n    print(1)\n',
            [],
        ),
    ],
)
def test_what_may_have_another_verdict_after_a_change(old: str, new: str, names: list[str]) -> None:
    assert old in FILE
    assert (
        functions_to_grade(FILE, FILE.replace(old, new), ["a", "b", "c"], finished=["c"]) == names
    )


def test_stubs_are_known_at_once_and_what_is_written_waits(folder: Path) -> None:
    (folder / "11_multiple_gpus.py").unlink()
    shutil.copy(REPOSITORY / "reference" / "day8" / "01_checking_device.py", folder)
    course = Course(folder.parents[1])
    states = [work.state for work in course.works]
    assert states == ["unknown", *["to do"] * 9, "missing", "unknown"]
    assert course.pending == {
        "01_checking_device": ["select_device"],
        "12_self_assessment": ["ANSWERS"],
    }
    assert course.current.stem == "01_checking_device"
    assert course.score == (0, 100)


def test_it_begins_where_the_student_stopped(folder: Path) -> None:
    for name in ("01_checking_device.py", "03_moving_batches.py"):
        shutil.copy(REPOSITORY / "reference" / "day8" / name, folder)
    course = Course(folder)
    for work in (course.works[0], course.works[2]):
        passed(work)
    course.pending = {"12_self_assessment": ["ANSWERS"]}
    course.move_to(course.works[4])
    (folder / "03_moving_batches.py").write_text(
        "def move_batch(batch, device):\n    return batch\n", encoding="utf-8"
    )
    again = Course(folder)
    assert again.current.stem == "05_modifying_evaluation_loop_gpu"
    assert again.works[0].state == "done"
    assert again.pending == {
        "03_moving_batches": ["move_batch", "on_same_device"],
        "12_self_assessment": ["ANSWERS"],
    }
    assert (folder / PROGRESS_FILE.parent / ".gitignore").read_text(encoding="utf-8") == "*\n"
    (folder / PROGRESS_FILE).write_text('{"current": 3', encoding="utf-8")
    assert Course(folder).current.stem == "01_checking_device"
    assert Course(folder / "07_mixed_precision.py").current.stem == "07_mixed_precision", (
        "a file may be named"
    )


def test_a_syntax_error_hides_the_verdicts_and_its_repair_brings_them_back(folder: Path) -> None:
    path = folder / "02_moving_model_to_device.py"
    right = (REPOSITORY / "reference" / "day8" / path.name).read_text(encoding="utf-8")
    path.write_text(right, encoding="utf-8")
    work = Course(folder).works[1]
    passed(work)
    path.write_text(
        right.replace("def parameter_devices(", "def parameter_devices(("), encoding="utf-8"
    )
    assert work.read_file() == []
    assert work.state == "broken"
    assert work.broken is not None
    assert work.broken.type == "SyntaxError"
    path.write_text(right, encoding="utf-8")
    assert work.read_file() == []
    assert work.state == "done"


def test_what_to_fix_first(folder: Path) -> None:
    course = Course(folder)
    work = course.works[1]
    _, second = work.exercise.functions
    assert work.first is not None
    assert work.first.outcome is Outcome.TODO
    failed = result_of(
        work.exercise,
        second,
        second.checks[0],
        Outcome.FAILED,
        Failed("it is wrong", "it is right"),
    )
    work.note_verdict(second.name, [failed])
    assert work.first is failed, "what is begun comes before what is to do"
    assert course.work_after(work) is course.works[2]
    passed(work)
    assert work.first is None
    assert course.work_after(course.works[-1]) is course.works[0]


def test_a_folder_without_exercises_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoExercises, match=r"no exercise files in .*, such as exercises/day8$"):
        Course(tmp_path)


def test_a_file_that_is_no_longer_text_is_seen_and_so_is_its_repair(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_begin_grading", "_prefer_spare"):
        monkeypatch.setattr(Session, name, lambda session: None)
    course = Course(folder)
    work = course.works[0]
    work.read_file()
    seen: list[str] = []
    session = Session(course, lambda event, work: seen.append(work.state), "virtual")
    text = work.path.read_bytes()
    for data in (text + b"# Gr\xf6\xdfe\n", text):
        work.path.write_bytes(data)
        session._handle_saves({work.path})
    assert seen == ["broken", "to do"]


@pytest.mark.parametrize(("count", "said"), [(1, "(1 hint; the"), (3, "(3 hints; the")])
def test_how_many_hints_there_are_is_told(
    count: int, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Course(folder).works[0]
    function = work.exercise.functions[0]
    failed = result_of(work.exercise, function, function.checks[0], Outcome.FAILED, Failed("", ""))
    monkeypatch.setattr(view, "hints_about", lambda *_: ("a hint",) * count)
    (part,) = view._parts_of_hints(work, failed, 0, "the key h")
    assert part.text == f"{said} first with the key h)"
