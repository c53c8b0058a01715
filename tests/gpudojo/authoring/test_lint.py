"""`dojo lint` finds each kind of fault, and none in a good exercise."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.authoring import lint, lint_declarations
from gpudojo.authoring.kept_solutions import kept_solutions
from gpudojo.authoring.lint_declarations import declaration_findings, functions_not_in_reference
from gpudojo.cli import main
from gpudojo.grading.checks import runs
from gpudojo.model import catalogue
from gpudojo.model.catalogue import Day
from gpudojo.model.exercise import Exercise, Failed, Seen
from gpudojo.release.stubs import stub_of

ROOT = Path(__file__).parents[3]
STEM = "01_checking_device"
MISCONCEPTIONS = catalogue.BUILT_IN / "day8" / "misconceptions.toml"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one exercise, all as it should be."""
    exercise = next(e for e in lint.exercises_of("day8") if e.stem == STEM)
    for module in (lint, lint_declarations):
        monkeypatch.setattr(module, "exercises_of", lambda name: (exercise,))
    for folder in (f"reference/day8/{STEM}.py", f"exercises/day8/{STEM}.py"):
        (tmp_path / folder).parent.mkdir(parents=True)
    source = (ROOT / "reference" / "day8" / f"{STEM}.py").read_text(encoding="utf-8")
    (tmp_path / "reference" / "day8" / f"{STEM}.py").write_text(source, encoding="utf-8")
    (tmp_path / "exercises" / "day8" / f"{STEM}.py").write_text(stub_of(source), encoding="utf-8")
    wrong = tmp_path / "tests" / "day8" / "wrong" / STEM
    shutil.copytree(ROOT / "tests" / "day8" / "wrong" / STEM, wrong)
    return tmp_path


def problems(root: Path, quick: bool = True) -> list[str]:
    return [str(finding) for finding in lint.lint_day("day8", root, quick).problems]


def test_a_good_exercise_has_no_problems_and_missing_ones_are_a_warning(repository: Path) -> None:
    report = lint.lint_day("day8", repository)
    assert report.problems == []
    (warning,) = [f.text for f in report.findings if "are missing" in f.text]
    assert warning == (
        "exercises 02, 03, 04, 05, 06, 07, 08, 09, 10, 11, 12 are missing; 8 of 100 points "
        "are there"
    )
    assert [(row.stem, row.checks) for row in report.rows] == [(STEM, 9)]


def test_stubs_that_show_or_do_too_much(repository: Path) -> None:
    stub = repository / "exercises" / "day8" / f"{STEM}.py"
    right = stub.read_text(encoding="utf-8")
    stub.write_text(
        right.replace("    raise NotImplementedError\n", '    best = torch.device("cuda")\n', 1)
    )
    found = problems(repository)
    assert any(": exercises: select_device::runs is passed, not to do" in text for text in found)
    assert f"exercises/day8/{STEM}.py: the stub is stale; run: dojo release stubs" in found
    assert any(
        ": the stub shows line" in text and 'best = torch.device("cuda")' in text for text in found
    )
    stub.unlink()
    assert (f"exercises/day8/{STEM}.py: it is missing; run: dojo release stubs") in problems(
        repository
    )


def test_a_reference_that_fails_and_markers_that_do_not_match(repository: Path) -> None:
    reference = repository / "reference" / "day8" / f"{STEM}.py"
    source = reference.read_text(encoding="utf-8")
    reference.write_text(source.replace("if prefer is None:", "if prefer is Nothing:"))
    assert any(
        "reference: select_device::runs is failed, not passed: scenario" in text
        for text in problems(repository)
    )
    reference.write_text(source.replace("# END SOLUTION", "# END"))
    assert any(
        re.fullmatch(rf"reference/day8/{STEM}\.py:\d+: a solution begins and does not end", text)
        for text in problems(repository)
    )


def test_a_function_that_the_reference_lacks_is_told_once(repository: Path) -> None:
    """Also where the stub was made from it, and lacks the function, too."""
    reference = repository / "reference" / "day8" / f"{STEM}.py"
    source = reference.read_text(encoding="utf-8").replace("select_device", "choose_device")
    reference.write_text(source, encoding="utf-8")
    stub = repository / "exercises" / "day8" / f"{STEM}.py"
    stub.write_text(stub_of(source), encoding="utf-8")
    (found,) = problems(repository, quick=False)
    assert found.endswith(
        f": reference/day8/{STEM}.py has no `select_device`; did you mean choose_device?"
    )


def test_checks_and_wrong_solutions_that_do_not_go_together(repository: Path) -> None:
    wrong = repository / "tests" / "day8" / "wrong" / STEM
    for path in wrong.glob("*.py"):
        if "::takes_apples_gpu " in path.read_text(encoding="utf-8").splitlines()[0]:
            path.unlink()
    (wrong / "silent.py").write_text("def select_device(prefer=None): ...\n")
    (wrong / "odd.py").write_text("# fails: select_device::flies as no-such-mistake\n")
    found = problems(repository)
    (untried,) = [text for text in found if "is tested by no wrong solution" in text]
    assert re.match(r"\S+checking_device\.py:\d+: select_device::takes_apples_gpu is", untried)
    assert untried.endswith("write one below # fails: select_device::takes_apples_gpu as -")
    where = f"tests/day8/wrong/{STEM}"
    assert (
        f"{where}/silent.py:1: its first line does not say which check it fails; "
        "write: # fails: FUNCTION::CHECK as -"
    ) in found
    assert any(
        text.startswith(
            f"{where}/odd.py:1: a wrong solution says it fails select_device::flies, "
            "which does not exist; its checks are: "
        )
        for text in found
    )
    advice = (
        f"there is no misconception 'no-such-mistake'; add [no-such-mistake] to {MISCONCEPTIONS}"
    )
    assert f"{where}/odd.py:1: {advice}" in found


def test_solutions_are_tried_unless_it_is_quick(repository: Path) -> None:
    wrong = repository / "tests" / "day8" / "wrong" / STEM
    reference = (repository / "reference" / "day8" / f"{STEM}.py").read_text(encoding="utf-8")
    (wrong / "right.py").write_text("# fails: select_device::runs as -\n" + reference)
    other = "# fails: select_device::takes_the_gpu as -\ndef select_device(prefer=None): return 1\n"
    (wrong / "other.py").write_text(other)
    right = repository / "tests" / "day8" / "right" / STEM
    right.mkdir(parents=True)
    (right / "right.py").write_text(reference)
    (right / "wrong.py").write_text("def select_device(prefer=None): return 1\n")
    few = f"{STEM}: `select_device` has 2 right solutions; it needs 4"
    assert problems(repository, quick=True) == [few]
    found = problems(repository, quick=False)
    where = f"tests/day8/wrong/{STEM}"
    claims = "and its first line claims that it fails runs as -"
    assert f"{where}/right.py:1: it passes everything, {claims}" in found
    (said,) = [text for text in found if text.startswith(f"{where}/other.py:1: ")]
    claims = "and its first line claims that it fails takes_the_gpu as -: "
    assert f"it fails depends_on_the_machine as -, {claims}" in said
    (said,) = [text for text in found if text.startswith("tests/day8/right/")]
    fails = "it fails depends_on_the_machine as -, and should pass: "
    assert said.startswith(f"tests/day8/right/{STEM}/wrong.py:1: {fails}")


def test_solutions_may_share_a_file(repository: Path) -> None:
    folder = repository / "tests" / "day8"
    (folder / f"solutions_{STEM}.py").write_text(
        '"""For all of them."""\n\n'
        "import torch\n\n\n"
        "# passes\n"
        "def select_device(prefer=None): ...\n\n\n"
        "# fails: select_device::runs as -\ndef select_device(prefer=None):\n    raise ValueError\n"
    )
    first, second = [one for one in kept_solutions(folder) if one.where.startswith("solutions_")]
    assert (first.where, first.wrong) == (f"solutions_{STEM}.py, line 6", False)
    assert "import torch" in first.source
    assert "ValueError" not in first.source
    assert (second.exercise, second.claim) == (STEM, ("select_device", "runs", None))
    assert second.source.startswith("# fails: select_device::runs as -\n")
    assert (second.path.parents[2].name, second.path.parents[1].name) == ("day8", "wrong")
    ast.parse(second.source)


def test_what_an_exercise_says_of_itself() -> None:
    exercise = Exercise("01_x", "X", points=5)
    function = exercise.function("f")

    @function.check(points=2, needs=("later",))
    def first(seen: Seen, wanted: Seen) -> None:
        """It is first."""
        raise Failed("", "")

    said = [str(finding) for finding in declaration_findings(exercise, root=ROOT)]
    here = Path(__file__).relative_to(ROOT).as_posix()
    texts = [text.removeprefix(f"{here}:").partition(": ")[2] for text in said[1:]]
    assert said[0] == "01_x: `f` has no hints; write some below [[f.hints]] in this file"
    assert texts == [
        "`f` has no probes or no checks",
        "f::first needs 'later', not judged before it; there are runs",
        "the points of its checks add up to 2, not 5 (f 2); change the points of a check, or those "
        "of the exercise",
    ]
    assert all(re.match(rf"{here}:\d+: ", text) for text in said[1:])


def test_names_that_are_misspelt_are_told_with_the_similar_one(tmp_path: Path) -> None:
    exercise = Exercise("01_x", "X", points=2)
    function = exercise.function("mean_los")

    @function.check(points=2, needs=())
    def first(seen: Seen, wanted: Seen) -> None:
        """It is first."""

    @function.check(points=0, needs=("firts",))
    def second(seen: Seen, wanted: Seen) -> None:
        """It is second."""

    exercise.hints_file = tmp_path / "01_x.toml"
    exercise.hints_file.write_text(
        '[[mean_los.hints]]\nsteps = ["x"]\n[[mean_los.hints]]\nabout = ["scond"]\nsteps = ["y"]\n'
    )
    reference = tmp_path / "reference.py"
    reference.write_text("def mean_loss(): ...\n")
    said = [str(finding) for finding in declaration_findings(exercise, root=tmp_path)]
    assert (
        "01_x.toml:4: `mean_los` has hints on 'scond', no check of it and no misconception; "
        "did you mean second?"
    ) in said
    (needs,) = [text for text in said if "needs" in text]
    assert needs.endswith("needs 'firts', not judged before it; did you mean first?")
    (missing,) = functions_not_in_reference(exercise, reference, tmp_path)
    assert missing.text == "reference.py has no `mean_los`; did you mean mean_loss?"
    assert missing.place.startswith(Path(__file__).as_posix())
    exercise = Exercise("01_x", "X", points=2)
    exercise.function("other")
    exercise.hints_file = tmp_path / "01_x.toml"
    said = [str(finding) for finding in declaration_findings(exercise, root=tmp_path)]
    assert "01_x.toml:1: 01_x has no function 'mean_los'; its functions are: other" in said


def test_a_function_is_declared_once() -> None:
    exercise = Exercise("01_x", "X", points=2)
    exercise.function("first")
    with pytest.raises(ValueError, match="01_x has a function 'first' already"):
        exercise.function("first")


def test_misconceptions_are_found_where_checks_name_them() -> None:
    source = (
        "def helper(seen, misconception):\n    raise Failed('a', 'b', None, misconception)\n"
        "def check():\n"
        "    helper(1, 'by-position')\n"
        "    raise Failed('no-key', '', 3, 'fourth' if x else None)\n"
        "def other():\n    raise Failed('a', 'b', misconception=x and 'by-name')\n"
    )
    assert sorted(key for key, _ in lint_declarations.misconception_keys_in(source)) == [
        "by-name",
        "by-position",
        "fourth",
    ]


def test_misconceptions_are_searched_in_packages_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somewhere").mkdir()
    source = "raise Failed('a', 'b', None, 'no-such-mistake')\n"
    (tmp_path / "somewhere" / "checks.py").write_text("\n" + source, encoding="utf-8")
    (tmp_path / "alone.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(
        lint_declarations, "registered_days", lambda: {"day8": Day("day8", "x.day8", tmp_path)}
    )
    said = (
        "there is no misconception 'no-such-mistake'; "
        f"add [no-such-mistake] to {tmp_path / 'misconceptions.toml'}"
    )
    assert [(f.exercise, f.text) for f in lint_declarations.misconception_findings("day8", [])] == [
        ("alone.py", said),
        ("somewhere/checks.py", said),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device.py", "first = 1\nSHOWN = 'write {line}'\n"),
        ("hints/01_x.toml", '# first\nsteps = ["{line}"]\n'),
    ],
)
def test_a_line_of_a_solution_that_students_get_is_found(
    name: str, text: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = repository / "package"
    path = package / name
    path.parent.mkdir(parents=True)
    day = Day("day8", "x.day8", package)
    monkeypatch.setattr(lint_declarations, "registered_days", lambda: {"day8": day})
    reference = repository / "reference" / "day8" / f"{STEM}.py"
    line = "return prefer or [torch.device(name) for name in names][0]"
    source = reference.read_text(encoding="utf-8")
    marker = "    # BEGIN SOLUTION\n"
    reference.write_text(source.replace(marker, f"{marker}    {line}\n", 1), encoding="utf-8")
    path.write_text(text.replace("{line}", "the usual words"), encoding="utf-8")
    assert list(lint_declarations.leak_findings("day8", repository)) == []
    path.write_text(text.replace("{line}", line), encoding="utf-8")
    (found,) = lint_declarations.leak_findings("day8", repository)
    number = source.splitlines().index("    # BEGIN SOLUTION") + 2
    assert str(found) == (
        f"package/{name}:2: students could read line {number} of the solution in {STEM}.py: "
        f"{line}; say it in other words"
    )


def test_the_command_prints_a_table_and_fails_on_problems(repository: Path) -> None:
    def run() -> tuple[int, str]:
        result = CliRunner(env={"COLUMNS": "120"}).invoke(
            main, ["lint", "--quick", "--root", str(repository)]
        )
        return result.exit_code, result.output

    code, said = run()
    assert code == 0, said
    assert "│ 01_checking_device │      8 │         1 │      9 │" in said
    assert "warning: day8: exercises 02, " in said
    for words in (["--limit", "3"], ["--mutants", "--exercise", "99"]):
        refused = CliRunner().invoke(main, ["lint", "--root", str(repository), *words])
        assert refused.exit_code == 2, refused.output
    (repository / "exercises" / "day8" / f"{STEM}.py").unlink()
    code, said = run()
    assert code == 1
    assert f"problem: exercises/day8/{STEM}.py: it is missing" in said


def test_table_text_and_exit_status_agree(repository: Path) -> None:
    wrong = repository / "tests" / "day8" / "wrong" / STEM
    header = "# fails: select_device::runs as input-modifed\n"
    (wrong / "odd.py").write_text(
        f"{header}def select_device(prefer=None):\n    raise ValueError\n"
    )
    run = CliRunner(env={"COLUMNS": "120"}).invoke(
        main, ["lint", "--quick", "--root", str(repository)]
    )
    assert run.exit_code == 1
    (row,) = [line for line in run.output.splitlines() if line.startswith(f"│ {STEM}")]
    assert row.endswith("│ 1 problem  │"), row
    (total,) = [line for line in run.output.splitlines() if line.startswith("│ total")]
    assert total.endswith("│ 1 problem  │"), total
    problems_told = [line for line in run.output.splitlines() if line.startswith("problem: ")]
    assert problems_told == [
        f"problem: tests/day8/wrong/{STEM}/odd.py:1: there is no misconception 'input-modifed'; "
        "did you mean input-modified?"
    ]


def test_what_ready_made_checks_name_is_known_in_every_day() -> None:
    """A day of somebody's own has no file of misconceptions at first."""
    grading = ROOT / "graders" / "gpudojo" / "grading"
    named = set()
    for path in grading.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
    assert named & set(catalogue.misconceptions_of("day8")) == set()
    for mistake in catalogue.general_mistakes().values():
        assert not mistake.rather or mistake.rather in catalogue.general_mistakes()


def test_a_check_that_is_declared_twice_is_told_with_a_remedy() -> None:
    exercise = Exercise("01_made_up", "Made up", points=0)
    function = exercise.function("first")
    runs(function)
    runs(function)
    texts = [finding.text for finding in declaration_findings(exercise, {})]
    (said,) = [text for text in texts if "two checks" in text]
    assert said == (
        "`first` has two checks named runs; give one of them a function of its own, "
        "below @check_scenarios(…), which has its name and its claim"
    )
