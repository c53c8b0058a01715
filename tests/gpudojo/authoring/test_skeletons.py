"""A new exercise is complete, clean and unfinished whatever its name.

What cannot be made leaves nothing behind.
"""

from __future__ import annotations

import ast
import errno
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.authoring.lint import NOTE
from gpudojo.authoring.new import (
    Plan,
    Surroundings,
    day_files,
    exercise_files,
    find_surroundings,
    share_points,
    write_new,
)
from gpudojo.authoring.signatures import split_signatures
from gpudojo.cli import main
from gpudojo.model.errors import BadName, CannotBegin, NameTaken
from gpudojo.release.stubs import stub_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
KNOWN = Surroundings(
    {"day8": ("01_first", "02_second"), "day9": ()},
    {"day8": frozenset({"first", "odd_one"}), "day9": frozenset()},
    {"evaluate": "02_second"},
)


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def test_what_is_here_is_known() -> None:
    known = find_surroundings(ROOT / "docs")
    assert known.course is None
    assert known.root == ROOT
    assert known.folder_of("day8") == "graders/gpudojo/days/day8"
    assert known.functions["train_epoch"] == "04_modifying_training_loop_gpu"
    assert "moving_model_to_device" in known.modules["day8"]
    assert known.next_number("day8") == len(known.stems["day8"]) + 1


def test_of_one_function_and_of_several() -> None:
    one = exercise_files(Plan("day8", "third_one"), KNOWN)
    assert list(one) == [
        "reference/day8/03_third_one.py",
        "exercises/day8/03_third_one.py",
        "graders/gpudojo/days/day8/third_one.py",
        "graders/gpudojo/days/day8/hints/03_third_one.toml",
        "tests/day8/solutions_03_third_one.py",
    ]
    assert one["exercises/day8/03_third_one.py"] == stub_of(
        one["reference/day8/03_third_one.py"] or ""
    )
    assert "def third_one(values):" in (one["reference/day8/03_third_one.py"] or "")
    two = exercise_files(
        Plan("day9", "third_one", ("darker", "paler"), points=3, title="Paler."), KNOWN
    )
    assert len(two) == 5
    module = two["graders/gpudojo/days/day9/third_one.py"] or ""
    assert "runs(darker)" in module
    assert "    paler_cases,\n    points=1.5,\n" in module
    assert (two["tests/day9/solutions_01_third_one.py"] or "").count("# fails: paler::") == 2
    assert (two["reference/day9/01_third_one.py"] or "").startswith('"""Paler.\n')


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_points_are_shared_out_without_a_remainder(count: int) -> None:
    for points in (3, 4, 5, 100):
        assert sum(share_points(points, count)) == points
        assert min(share_points(points, count)) > 0


NAMES = st.from_regex(r"[a-z](_?[a-z0-9]){0,29}", fullmatch=True).filter(
    lambda name: len(name) <= 30
)


# Most texts are no title, and are refused with a sentence: that is no reason to stop looking.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(NAMES, st.lists(NAMES, min_size=1, max_size=6, unique=True), st.text(max_size=80))
def test_whatever_it_is_called_it_is_python(name: str, functions: list[str], title: str) -> None:
    try:
        files = exercise_files(Plan("day9", name, tuple(functions), points=12, title=title), KNOWN)
    except CannotBegin:
        assume(False)
    for path, text in files.items():
        assert text is not None
        if path.endswith(".toml"):
            assert tomllib.loads(text).keys() == set(functions)
        else:
            ast.parse(text)
        assert NOTE.search(text), f"{path} has no note"


def test_files_of_short_long_few_and_many_names_are_clean(tmp_path: Path) -> None:
    plans = [
        Plan("day9", "a", ("d",), points=1, title="C"),
        Plan("day9", "b" * 30, ("c" * 30,), points=3, title="d" * 80),
        Plan(
            "day9", "y2", tuple(f"{letter * 29}{letter.upper()}" for letter in "zyxwvut"), points=8
        ),
        Plan("day9", "q", ("zebra", "ANSWERS", "apple"), points=7, title="Naïve: 50 % of 'em"),
        Plan("day9", "r", ("m10", "m2", "m1x", "m1y"), points=7),
        Plan(
            "day9",
            "s",
            (
                "cut(batch, device) -> Tensor",
                "f() -> tuple[Tensor, int]",
                f"{'g' * 30}({'h' * 30}, {'i' * 40}: int) -> Tensor",
                "j(model: nn.Module, x, *, dtype: torch.dtype, eps=1e-5, **more)",
            ),
            points=7,
        ),
    ]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "graders", tmp_path / "graders"
    )  # ruff sorts imports by where it finds them
    for plan in plans:
        write_new(tmp_path, exercise_files(plan, KNOWN))
    for rule in ("check", "format --check"):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *rule.split(),
            "--no-cache",
            "graders/gpudojo/days/day9",
            "reference",
        ]
        run = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path)
        assert run.returncode == 0, run.stdout


REFUSED = [
    (
        Plan("day8", "13_name"),
        "'13_name' cannot be the name of an exercise: use small letters, digits and single _",
    ),
    (Plan("day8", "Upper"), "'Upper' cannot be the name of an exercise"),
    (Plan("day8", "a b"), "'a b' cannot be the name of an exercise"),
    (Plan("day8", "../up"), "'../up' cannot be the name of an exercise"),
    (Plan("day8", ""), "'' cannot be the name of an exercise"),
    (Plan("day8", "class"), "no keyword of Python"),
    (Plan("day8", "nul"), "Windows reserves that name"),
    (Plan("day8", "day3"), "a file with that name is taken for a whole day"),
    (Plan("day8", "x" * 31), "it is longer than 30 letters"),
    (Plan("day8", "odd_one"), "odd_one already exists: graders/gpudojo/days/day8/odd_one"),
    (Plan("day8", "second"), "second already exists: day8 has an exercise 02_second"),
    (Plan("day9", "first"), "first already exists: day8 has an exercise 01_first"),
    (
        Plan("day7", "new"),
        "there is no day 'day7' (the days are: day8, day9); make it with: dojo new day day7",
    ),
    (
        Plan("day8", "new", ("evaluate",)),
        "evaluate already exists: 02_second has a function of that name",
    ),
    (Plan("day8", "new", ("a", "b", "a")), "a already exists: it is given twice"),
    (
        Plan("day8", "new", ("2nd",)),
        "'2nd' cannot be the name of a function: use letters, digits and single _",
    ),
    (Plan("day8", "new", ("a", "")), "'' cannot be the name of a function"),
    (Plan("day8", "new", ("sum",)), "Python has a built-in function of that name"),
    (Plan("day8", "new", ("torch",)), "the files of the exercise use that name for something else"),
    (
        Plan("day8", "new", ("exercise",)),
        "the files of the exercise use that name for something else",
    ),
    (
        Plan("day8", "new", ("values",)),
        "the files of the exercise use that name for something else",
    ),
    (Plan("day8", "new", ("f(call)",)), "'call' cannot be the name of a parameter"),
    (Plan("day8", "new", ("f(try_scenarios)",)), "'try_scenarios' cannot be the name of a param"),
    (Plan("day8", "new", ("f(x",)), "'f(x' cannot be the name of a function: "),
    (Plan("day8", "new", ("f(x): pass; g(y)",)), "write it as behind `def`, such as: rescale("),
    (Plan("day8", "new", ("f(x: Array)",)), "the file does not know Array: write torch.…"),
    (
        Plan("day8", "new", ("a", "b", "c", "d", "e"), points=1),
        "5 functions need more than 1 points",
    ),
    (Plan("day8", "new", title='"""'), 'one line of at most 80 letters, without ", \\ and $'),
    (Plan("day8", "new", title="two\nlines"), "one line of at most 80 letters"),
]


@pytest.mark.parametrize(("plan", "sentence"), REFUSED, ids=lambda one: str(one)[:24])
def test_what_cannot_be_is_refused_with_a_sentence(plan: Plan, sentence: str) -> None:
    with pytest.raises(CannotBegin) as caught:
        exercise_files(plan, KNOWN)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_day() -> None:
    files = day_files("day10", KNOWN, "sprites of one's own", exercises=3, points=30)
    assert (
        files["graders/gpudojo/days/day10/__init__.py"]
        == '"""Day 10: sprites of one\'s own."""\n\nEXERCISES = 3\nPOINTS = 30\n'
    )
    assert day_files("day11", KNOWN)["graders/gpudojo/days/day11/__init__.py"] == (
        '"""Day 11: the exercises of day 11."""\n'
    )
    assert {path for path, text in files.items() if text is None} == {
        "reference/day10",
        "exercises/day10",
    }
    for name in ("days", "day", "day0", "day08", "Day9", "day9x", "../day9", "day9999"):
        with pytest.raises(BadName, match="it is called day and a number, such as day9"):
            day_files(name, KNOWN)
    with pytest.raises(NameTaken, match="day8 already exists: it has 2 exercises"):
        day_files("day8", KNOWN)


def test_the_tests_of_a_day_are_those_of_day_8() -> None:
    made = day_files("day10", KNOWN)["tests/day10/test_solutions.py"]
    assert made is not None
    present = (ROOT / "tests" / "day8" / "test_solutions.py").read_text(encoding="utf-8")
    assert made.replace("day10", "day8") == present


def test_a_file_that_is_there_stops_all_of_them(tmp_path: Path) -> None:
    files = exercise_files(Plan("day9", "new"), KNOWN)
    last = tmp_path / list(files)[-1]
    last.parent.mkdir(parents=True)
    last.write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(
        NameTaken, match=r"tests/day9/solutions_01_new\.py already exists: nothing was written"
    ):
        write_new(tmp_path, files)
    assert everything(tmp_path) == before
    assert last.read_text() == "mine"


def test_a_disk_that_is_full_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graders" / "gpudojo" / "days" / "day9").mkdir(parents=True)
    before = everything(tmp_path)
    files = exercise_files(Plan("day9", "new"), KNOWN)
    real = Path.open
    count = 0

    def full(self: Path, *args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return real(self, *args, **kwargs)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(CannotBegin, match="No space left on device; nothing was written"):
        write_new(tmp_path, files)
    assert count == 3
    assert everything(tmp_path) == before


def test_the_commands_speak_in_sentences_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = replace(KNOWN, root=tmp_path)
    monkeypatch.setattr("gpudojo.cli.authoring.find_surroundings", lambda root: known)

    def said(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["new", *words, "--root", str(tmp_path)])
        return result.exit_code, result.output

    assert said("exercise", "day8", "2nd")[0] == 1
    assert said("day", "day8")[1].startswith(
        "Error: day8 already exists: it has 2 exercises; add one with: "
    )
    assert everything(tmp_path) == set()
    code, output = said("exercise", "day9", "new", "--functions", "one, two")
    assert code == 0, output
    made = tmp_path / "graders" / "gpudojo" / "days" / "day9" / "new.py"
    assert f"written: {made}\n" in output, (
        "where it is, seen from a folder outside of the repository"
    )
    monkeypatch.chdir(tmp_path)
    assert "written: reference/day9/01_other.py\n" in said("exercise", "day9", "other")[1]
    assert output.endswith("what to do next, run: dojo lint --day day9\n")
    code, output = said("day", "day10")
    assert code == 0, output
    assert (tmp_path / "exercises" / "day10").is_dir()


def test_another_clone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "graders" / "gpudojo" / "days").mkdir(parents=True)
    with pytest.raises(CannotBegin, match="the gpudojo that runs is another one; run: pip install"):
        find_surroundings(tmp_path / "graders")
    with pytest.raises(CannotBegin, match=r"is no course: .*, run: dojo new course NAME$"):
        find_surroundings(tmp_path.parent)


def test_a_signature_is_that_of_reference_stub_and_module() -> None:
    text = "crop(batch: Tensor, size: int, device) -> Tensor; flip(batch)"
    files = exercise_files(Plan("day9", "crops", split_signatures(text)), KNOWN)
    definition = "def crop(batch: torch.Tensor, size: int, device) -> torch.Tensor:\n"
    for path in ("reference/day9/01_crops.py", "exercises/day9/01_crops.py"):
        made = files[path] or ""
        assert definition in made
        assert "def flip(batch):\n" in made
        assert "        result = crop(batch, 3, device)\n" in made
    module = files["graders/gpudojo/days/day9/crops.py"] or ""
    assert "lambda: describe_call(call, batch, 3, call.device)," in module
    assert "lambda: describe_call(call, batch[:1], 3, call.device)," in module
    solutions = files["tests/day9/solutions_01_crops.py"] or ""
    assert solutions.startswith("import torch\n")
    assert solutions.count("def crop(batch, size, device):\n") == 3


def test_functions_are_separated_outside_of_brackets() -> None:
    text = "a, b(x, y=(1, 2)) -> tuple[int, str]; c"
    assert split_signatures(text) == ("a", "b(x, y=(1, 2)) -> tuple[int, str]", "c")
