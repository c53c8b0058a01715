"""`dojo lint` finds each kind of fault, and none in a good exercise."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpudojo.authoring import lint, lint_declarations
from gpudojo.authoring.kept_solutions import kept_solutions
from gpudojo.cli import main
from gpudojo.model.catalogue import Day
from gpudojo.model.exercise import Exercise, Failed, Seen
from gpudojo.release.stubs import stub_of

ROOT = Path(__file__).parents[3]
STEM = "01_checking_device"


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
    return [finding.text for finding in lint.lint_day("day8", root, quick).problems]


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
    assert any(
        text.startswith("exercises: select_device::runs is passed, not to do") for text in found
    )
    assert "the stub is stale; run: dojo release stubs" in found
    assert any(
        text.startswith("the stub shows line") and 'best = torch.device("cuda")' in text
        for text in found
    )
    stub.unlink()
    assert f"exercises/day8/{STEM}.py is missing" in problems(repository)


def test_a_reference_that_fails_and_markers_that_do_not_match(repository: Path) -> None:
    reference = repository / "reference" / "day8" / f"{STEM}.py"
    source = reference.read_text(encoding="utf-8")
    reference.write_text(source.replace("if prefer is None:", "if prefer is Nothing:"))
    assert any(
        "reference: select_device::runs is failed, not passed: scenario" in text
        for text in problems(repository)
    )
    reference.write_text(source.replace("# END SOLUTION", "# END"))
    assert any(text.endswith("a solution begins and does not end") for text in problems(repository))


def test_checks_and_wrong_solutions_that_do_not_go_together(repository: Path) -> None:
    wrong = repository / "tests" / "day8" / "wrong" / STEM
    for path in wrong.glob("*.py"):
        if "::takes_apples_gpu " in path.read_text(encoding="utf-8").splitlines()[0]:
            path.unlink()
    (wrong / "silent.py").write_text("def select_device(prefer=None): ...\n")
    (wrong / "odd.py").write_text("# fails: select_device::flies as no-such-mistake\n")
    found = problems(repository)
    assert "select_device::takes_apples_gpu is tested by no wrong solution" in found
    assert "wrong/silent.py: its first line does not say which check it fails" in found
    assert "a wrong solution says it fails select_device::flies, which does not exist" in found
    assert "wrong/odd.py: day8 has no misconception 'no-such-mistake'" in found


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
    few = "`select_device` has 2 right solutions; it needs 4"
    assert problems(repository, quick=True) == [few]
    found = problems(repository, quick=False)
    assert "wrong/right.py got: passed everything; it says: runs as -" in found
    assert (
        "wrong/other.py got: failed depends_on_the_machine as -; it says: takes_the_gpu as -"
        in found
    )
    (said,) = [text for text in found if text.startswith("right/")]
    assert said.startswith(
        "right/wrong.py should pass and got: failed depends_on_the_machine as -: "
    )


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

    assert [finding.text for finding in lint_declarations.declaration_findings(exercise)] == [
        "`f` has no hints",
        "`f` has no probes or no checks",
        "f::first needs 'later', not judged before it",
        "the points of its checks add up to 2, not 5",
    ]


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
    said = "names a misconception 'no-such-mistake' that day8's misconceptions.toml does not have"
    assert [(f.exercise, f.text) for f in lint_declarations.misconception_findings("day8", [])] == [
        ("alone.py", f"line 1 {said}"),
        ("somewhere/checks.py", f"line 2 {said}"),
    ]


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
    assert f"problem: {STEM}: exercises/day8/{STEM}.py is missing" in said
