"""A released repository works by itself: two lines install and run it, and it is the same bytes
each time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.classes.course_file import load_course
from gpudojo.cli import main
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import CannotRelease
from gpudojo.platforms import find_seals
from gpudojo.release import recording, student
from gpudojo.release.manifest import manifest_of_folder
from gpudojo.submissions.own_output import MARK, is_own_output

from tests.gpudojo.pytest_plugin.test_timelines import WAITING
from tests.sharing import WarmPython, once

from .conftest import REFERENCE, ROOT, Released


@pytest.fixture(scope="module")
def python(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """A fresh environment with what the README's first line installs.

    What it needs is taken from this one.
    """
    made = WarmPython(
        once(tmp_path_factory, "two-lines", lambda folder: installed(released, folder))
    )
    yield made
    made.close()


def installed(released: Released, folder: Path) -> Path:
    """The Python of such an environment in this folder."""
    venv.create(folder, with_pip=False)
    made = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run(
        [made, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    Path(packages, "borrowed.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    install, _ = two_lines(released)
    subprocess.run(
        [made, "-m", *install],
        cwd=released.folder,
        env=student_environment(PIP_NO_INDEX="1"),
        check=True,
    )
    return made


def two_lines(released: Released) -> list[list[str]]:
    """What a student types, from the README itself."""
    text = (released.folder / "README.md").read_text(encoding="utf-8")
    block = text.split("```sh\n")[1].split("```")[0]
    lines = [line.split() for line in block.splitlines()]
    assert [line[0] for line in lines] == ["pip", "pytest"]
    return lines


def test_the_readme_makes_an_environment_before_it_installs_anything(released: Released) -> None:
    text = (released.folder / "README.md").read_text(encoding="utf-8")
    assert (
        text.index("-m venv .venv") < text.index("pip install") < text.index("-r requirements.txt")
    )
    for system in ("Linux", "Windows", "macOS"):
        (line,) = re.findall(rf"^\| {system} \| `(pip install .*)` \|$", text, re.M)
        assert line.startswith("pip install torch==2.13.0")
        assert line.endswith("/whl/cpu") == (system != "macOS"), "there, the usual one has no CUDA"
    assert "dojo watch exercises/day8" in text
    assert "dojo run exercises/day8/01_checking_device.py" in text


def student_environment(**more: str) -> dict[str, str]:
    left = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))
    }
    return left | {"COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""} | more


def run(python: WarmPython, *arguments: str, cwd: Path) -> str:
    """What `python -m` and these arguments say."""
    done = python.run(*arguments, cwd=cwd, env=student_environment())
    assert done.returncode in (0, 1, 4), done.stdout + done.stderr
    return done.stdout + done.stderr


def test_lessons_are_in_it_and_linked_from_the_readme(released: Released) -> None:
    text = released.files["README.md"].decode()
    linked = re.findall(r"\]\((lessons/[^)]*)\)", text)
    assert linked == [f"lessons/day8/{exercise.stem}.md" for exercise in exercises_of("day8")]
    assert all(
        b"## Check yourself" in released.files[path] and b"<!--" not in released.files[path]
        for path in linked
    )
    with zipfile.ZipFile(released.folder / released.wheel) as wheel:
        assert {Path(path).name for path in linked} <= {
            Path(name).name for name in wheel.namelist()
        }


def test_the_two_lines_of_the_readme_show_everything_to_do(
    released: Released, python: WarmPython, tmp_path: Path
) -> None:
    _, line = two_lines(released)
    shutil.copytree(released.folder, tmp_path / "day8")  # other tests look at what was released
    output = run(python, *line, cwd=tmp_path / "day8")
    checks = sum(
        len(function.checks) for exercise in exercises_of("day8") for function in exercise.functions
    )
    assert f"{checks} to do in " in output
    assert "next: write `select_device`" in output


@pytest.fixture(scope="module")
def solved(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of a student who has solved everything."""
    folder = tmp_path_factory.mktemp("solved")
    for name, data in released.files.items():
        if not name.startswith(("vendor/", "notebooks/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    for path in REFERENCE.glob("*.py"):
        (folder / "exercises" / "day8" / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("--bench", "cpu", "--seed", "10"), marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_right_solutions_pass_without_a_reference(
    solved: Path, python: WarmPython, options: tuple[str, ...]
) -> None:
    output = run(python, "pytest", "exercises/day8", "-q", *options, cwd=solved)
    assert "Everything passes. Well done!" in output, output[-3000:]


def test_a_wrong_solution_is_told_what_is_wrong_and_the_signature(
    solved: Path, python: WarmPython
) -> None:
    path = solved / "exercises" / "day8" / "05_modifying_evaluation_loop_gpu.py"
    before = path.read_bytes()
    path.write_text("def evaluate(model, loader):\n    return 0.0, 0.0\n", encoding="utf-8")
    try:
        output = run(python, "pytest", str(path), cwd=solved)
    finally:
        path.write_bytes(before)
    assert "(model, loader, loss_fn, device)" in output


def test_what_the_reference_did_is_told_though_it_is_not_there(
    solved: Path, python: WarmPython
) -> None:
    path = solved / "exercises" / "day8" / "04_modifying_training_loop_gpu.py"
    before = path.read_bytes()
    path.write_text(WAITING, encoding="utf-8")
    try:
        output = run(python, "pytest", str(path), "--timeline", cwd=solved)
    finally:
        path.write_bytes(before)
    found = re.search(r"Your code: (\d+) waits \(reference: (\d+)\)", output)
    assert found is not None, output[-3000:]
    assert int(found[1]) > int(found[2]) > 0


def test_another_seed_is_answered_with_those_there_are(solved: Path, python: WarmPython) -> None:
    output = run(python, "pytest", "exercises/day8", "--seed", "77", cwd=solved)
    assert (
        "--seed 77: what the reference does is recorded here for the seeds 8, 9 and 10, not for 77"
        in output
    )
    assert "passed" not in output


def test_no_reference_is_run_and_none_is_there(
    solved: Path, python: WarmPython, tmp_path: Path
) -> None:
    code = "from pathlib import Path\nfrom gpudojo.grading.references import reference_for\n"
    code += "from gpudojo.model.catalogue import exercises_of\n"
    code += (
        "print(type(reference_for(Path('exercises/day8/x.py').resolve(), "
        "exercises_of('day8')[0])).__name__)"
    )
    script = tmp_path / "ask.py"
    script.write_text(code, encoding="utf-8")
    assert run(python, str(script), cwd=solved).strip() == "RecordedReference"


@pytest.mark.slow
def test_the_same_bytes_every_time(released: Released) -> None:
    again = recording.record_evidence(REFERENCE, "day8")
    assert again == released.evidence
    exercises = student.stubs_for_students(REFERENCE, "day8")
    assert student.repository_files(ROOT, "day8", exercises, again, find_seals()) == released.files


def test_what_is_written_is_what_was_made(released: Released) -> None:
    found = {
        p.relative_to(released.folder).as_posix(): p.read_bytes()
        for p in released.folder.rglob("*")
        if p.is_file()
    }
    assert is_own_output(released.folder)
    del found[MARK]
    assert found == released.files
    beside = [path.name for path in released.folder.parent.iterdir()]
    assert beside == ["day8"], "something was left over"
    stubs = {p.name: p.read_bytes() for p in (ROOT / "exercises" / "day8").glob("*.py")}
    assert {
        n.rpartition("/")[2]: d for n, d in released.files.items() if n.startswith("exercises/")
    } == stubs


def test_the_wheel_has_the_grader_and_its_license_and_no_solutions(released: Released) -> None:
    with zipfile.ZipFile(released.folder / released.wheel) as archive:
        names = archive.namelist()
        stamps = {info.date_time for info in archive.infolist()}
        metadata = next(archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "gpudojo",
        "virtual_cuda",
    }
    assert any(name.endswith("LICENSE") for name in names)
    assert "gpudojo/grading/of_reference/day8.mp" in names
    assert stamps == {(2020, 1, 1, 0, 0, 0)}
    assert "Requires-Dist: torch>=2.8" in metadata


def test_requirements_name_no_host_and_every_dependency(released: Released) -> None:
    lines = (released.folder / "requirements.txt").read_text(encoding="utf-8").split("\n")
    assert "torch==2.13.0" in lines
    assert f"./{released.wheel}" in lines
    assert not [line for line in lines if "://" in line or line.startswith("-")]
    packages = {line.partition("==")[0] for line in lines}
    assert {"pytest", "msgspec", "click", "rich", "py-landlock"} <= packages


def test_platforms_add_files_without_being_listed_and_replace_none() -> None:
    assert "gpudojo.platforms.github_classroom.workflow" in {
        seal.__module__ for seal in find_seals()
    }
    with pytest.raises(CannotRelease, match=r"README\.md would be written twice"):
        student.repository_files(ROOT, "day8", {}, b"", [lambda files, name: {"README.md": b""}])


COURSE = """
title = "GPU programming"
points = 20
deadline = 2026-11-20T23:59:00+01:00
hand_in = "Upload your files as a zip."
[exercises]
"01" = 10
"12" = { points = 5, extra = true }
[[by_hand]]
name = "report"
points = 10
rubric = [{ text = "the trace", points = 4 }, { text = "the explanation", points = 6 }]
"""


def test_the_readme_tells_the_rules_of_a_course(tmp_path: Path) -> None:
    path = tmp_path / "course.toml"
    path.write_text(COURSE, encoding="utf-8")
    course = load_course(path)
    left_out = student.exercises_left_out("day8", (), course)
    text = student.readme_text("day8", course, left_out)
    for words in (
        "**GPU programming**",
        "2 exercises, 10 points.",
        "out of 20 points",
        "Deadline: Friday, 2026-11-20, 23:59",
        "How to hand in: Upload your files as a zip.",
        "the trace: 4",
        "| `01_checking_device.py` | 10 |",
        "| `12_self_assessment.py` | 5 (extra credit) |",
    ):
        assert words in text
    assert "02_moving_model_to_device" not in text
    assert "Your course" not in student.readme_text("day8")
    # pytest says that the course counts others.
    assert "other points: see README.md" in student.pytest_ini_text("day8", course)
    assert student.pytest_ini_text("day8", None) == student.PYTEST_INI


def test_students_get_chosen_exercises_only_and_are_graded_for_these(tmp_path: Path) -> None:
    left_out = student.exercises_left_out("day8", ["1", "04_modifying_training_loop_gpu"])
    assert len(left_out) == 10
    files = student.repository_files(
        ROOT,
        "day8",
        {
            path: data
            for path, data in student.stubs_for_students(REFERENCE, "day8").items()
            if Path(path).stem not in left_out
        },
        b"",
        find_seals(),
        left_out=left_out,
    )
    stems = ("01_checking_device", "04_modifying_training_loop_gpu")
    for folder, ending in (("exercises", "py"), ("notebooks", "ipynb"), ("lessons", "md")):
        found = {path for path in files if path.startswith(f"{folder}/")}
        chosen = {f"{folder}/day8/{stem}.{ending}" for stem in stems}
        assert found - {"notebooks/day8/day8.ipynb"} == chosen
    whole_day = files["notebooks/day8/day8.ipynb"].decode()
    assert "train_epoch" in whole_day
    assert "autocast" not in whole_day
    for stem in left_out:
        assert stem not in files["README.md"].decode()
    workflow = files[".github/workflows/classroom.yml"].decode()
    assert "runners: exercise01,exercise04\n" in workflow
    # Whoever grades a checkout reads the choice from the release, not from the checkout.
    student.write_new_folder(files, tmp_path / "release")
    assert manifest_of_folder(tmp_path / "release").only == stems
    checkout = tmp_path / "checkout" / "exercises" / "day8"
    checkout.mkdir(parents=True)
    for name in ("01_checking_device.py", "02_moving_model_to_device.py"):
        (checkout / name).write_bytes((REFERENCE / name).read_bytes())
    words = ["--release", tmp_path / "release", "--reference", REFERENCE, "--out", tmp_path / "out"]
    done = CliRunner().invoke(
        main, ["classroom", str(tmp_path / "checkout"), "--for", "github", *map(str, words)]
    )
    assert done.exit_code == 0, done.output
    table = [line.split()[:2] for line in done.output.splitlines()[:3]]
    assert table == [[stems[0], "8"], [stems[1], "0"], ["total", "8"]]
    assert "02_moving" not in done.output


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("13", "there is no exercise '13'; there are 01_checking_device, 02_"),
        ("04_modify", "there is no exercise '04_modify'; did you mean 04_modifying_training_loop_"),
        ("02", "the exercise 02_moving_model_to_device does not count in the course file"),
    ],
)
def test_a_bad_choice_of_exercises_is_told(tmp_path: Path, name: str, why: str) -> None:
    path = tmp_path / "course.toml"
    path.write_text(COURSE, encoding="utf-8")
    words = ["release", "student", str(tmp_path / "made"), "--course", str(path)]
    done = CliRunner().invoke(main, [*words, "--only", "01", "--only", name])
    assert done.exit_code == 1
    assert why in done.output
    assert not (tmp_path / "made").exists()


def test_a_course_that_does_not_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "course.toml"
    path.write_text('[exercises]\n"13" = 10\n', encoding="utf-8")
    words = ["release", "student", str(tmp_path / "made"), "--course", str(path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "course.toml, line 2: there is no exercise '13'" in done.output
    assert not (tmp_path / "made").exists()


def test_without_gpudojo_its_settings_say_so_in_one_line(tmp_path: Path) -> None:
    """As when the student's environment is not switched on: without the installed packages."""
    (tmp_path / "conftest.py").write_text(student.CONFTEST, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "conftest.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"gpudojo is not installed in this Python ({sys.executable}).")
    assert "pip install -r requirements.txt" in line
