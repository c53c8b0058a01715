"""Notebooks are made from the references, byte for byte, valid for Jupyter, and never show a
solution.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadMarkers
from gpudojo.release import notebooks, sections, stubs
from gpudojo.submissions.opening_cell import opening_code

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "reference" / "day8"
WHOLE = "notebooks/day8/day8.ipynb"


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return notebooks.notebooks_of_day(ROOT, "day8")


def cells(data: bytes, kind: str | None = None) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(data)["cells"] if kind in (None, cell["cell_type"])]


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_one_for_each_exercise_and_one_for_the_day(made: dict[str, bytes]) -> None:
    stems = [path.stem for path in sorted(REFERENCE.glob("*.py"))]
    assert list(made) == [*(f"notebooks/day8/{stem}.ipynb" for stem in stems), WHOLE]


def test_a_lesson_stands_before_the_tasks_of_its_exercise(made: dict[str, bytes]) -> None:
    for exercise in exercises_of("day8"):
        for name in (f"notebooks/day8/{exercise.stem}.ipynb", WHOLE):
            ids = [cell["id"] for cell in cells(made[name])]
            place = ids.index(f"{exercise.number}-lesson")
            tasks = [
                ids.index(f"{exercise.number}-{function.name}") for function in exercise.functions
            ]
            assert place < min(tasks)
            lesson = text(cells(made[name])[place])
            assert lesson.startswith("### The idea\n")
            assert lesson.count("<details>") == 3
            assert "<!--" not in lesson


def test_they_are_valid_and_empty_of_outputs(made: dict[str, bytes]) -> None:
    for name, data in made.items():
        content = json.loads(data)
        nbformat.validate(nbformat.from_dict(content))
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in content["cells"]]
        assert len(set(ids)) == len(ids), name
        for cell in cells(data, "code"):
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile(text(cell), name, "exec")
        assert data.endswith(b"}\n")
        assert b"\r" not in data


def test_the_bytes_depend_on_nothing_but_the_stub(made: dict[str, bytes], tmp_path: Path) -> None:
    program = (
        "import hashlib, pathlib, sys; from gpudojo.release.notebooks import notebooks_of_day;"
        "made = notebooks_of_day(pathlib.Path(sys.argv[1]), 'day8'); print('torch' in sys.modules);"
        "print(hashlib.sha256(b''.join(made.values())).hexdigest())"
    )
    # Another solution below the same stub, another folder and another hash seed.
    folder = tmp_path / "reference" / "day8"
    shutil.copytree(REFERENCE, folder)
    first = folder / "02_moving_model_to_device.py"
    before = first.read_text(encoding="utf-8")
    first.write_text(
        before.replace("return model.to(device)", "model = model.to(device)\n    return model")
    )
    assert first.read_text(encoding="utf-8") != before
    said = set()
    for root, seed in ((ROOT, "1"), (tmp_path, "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "graders")}
        command = [sys.executable, "-c", program, str(root)]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        said.add(run.stdout)
    assert len(said) == 1
    assert said.pop().startswith("False\n"), "making notebooks does not need torch"


def test_no_line_of_a_solution_is_in_any_cell(made: dict[str, bytes]) -> None:
    looked_for = 0
    for path in sorted(REFERENCE.glob("*.py")):
        inside = False
        solution = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() in (stubs.BEGIN, stubs.END):
                inside = line.strip() == stubs.BEGIN
            elif inside and line.strip() and not line.strip().startswith(stubs.INSTEAD):
                solution.append(line.strip())
        stub = [
            line.strip() for line in stubs.stub_of(path.read_text(encoding="utf-8")).splitlines()
        ]
        secret = [line for line in solution if line not in stub]
        assert secret, path.name
        for name in (f"notebooks/day8/{path.stem}.ipynb", WHOLE):
            shown = [line.strip() for cell in cells(made[name]) for line in text(cell).splitlines()]
            found = set(secret) & set(shown)
            # The whole day shows the stubs of other exercises, too, where a line may stand that is
            # a solution here.
            found -= {
                line
                for other in (stubs.stubs_of_day(REFERENCE).values())
                for line in map(str.strip, other.splitlines())
            }
            assert found == set(), name
            looked_for += len(secret)
    assert looked_for > 200


def test_every_task_has_its_text_above_and_its_check_below(made: dict[str, bytes]) -> None:
    for exercise in exercises_of("day8"):
        data = made[f"notebooks/day8/{exercise.stem}.ipynb"]
        every = cells(data)
        ids = [cell["id"] for cell in every]
        for function in exercise.functions:
            at = ids.index(f"{exercise.number}-{function.name}")
            above, task, below = every[at - 1 : at + 2]
            assert text(above).startswith(f"### `{function.name}"), function.name
            assert "Read: <https://" in text(above)
            assert text(below) == f"check({function.name})"
            (statement,) = ast.parse(text(task)).body
            if isinstance(statement, ast.FunctionDef):
                assert stubs.IN_STUB in text(task)
                assert (
                    "About " in text(above)
                    or "line. Read" in text(above)
                    or "line.*" in text(above)
                )
        assert ids[-1].endswith("-demo")
        assert ids[1].endswith("-opening")
        assert text(every[0]).startswith(f"# {exercise.number} ")
        assert f"{exercise.points} points." in text(every[0])
    whole = cells(made[WHOLE])
    assert text(whole[-1]) == "check()"
    assert sum(cell["id"].endswith("-opening") for cell in whole) == 1


def test_a_notebook_defines_what_the_stub_defines(made: dict[str, bytes]) -> None:
    for name, stub in stubs.stubs_of_day(REFERENCE).items():
        data = made[f"notebooks/day8/{name.removesuffix('.py')}.ipynb"]
        code = "\n\n".join(
            text(cell)
            for cell in cells(data, "code")
            if not cell["id"].endswith(("-check", "-opening"))
        )
        wanted, found = (_without_docstrings(source) for source in (stub, code))
        assert found == wanted.replace(sections.IN_A_FILE, sections.IN_A_NOTEBOOK), name


def _without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.unparse(tree)


def opened(
    monkeypatch: pytest.MonkeyPatch, folder: Path, package: str | None, code: int = 0
) -> list[str]:
    """What the opening cell gives to pip on a machine without gpudojo."""
    asked: list[str] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "install"]
        asked.append(command[-1])
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.chdir(folder)
    try:
        exec(
            opening_code(package),
            names := {"__name__": "somewhere"},
        )
        assert callable(names["check"])
    finally:
        monkeypatch.undo()
    return asked


def test_the_opening_cell_installs_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notebooks" / "day8"
    folder.mkdir(parents=True)
    address = "git+https://example.org/it's.git"
    assert opened(monkeypatch, folder, address) == [address]
    with pytest.raises(RuntimeError, match="from the folder vendor"):  # a name may be anyone's
        opened(monkeypatch, folder, None)
    wheel = tmp_path / "vendor" / "gpudojo-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    assert opened(monkeypatch, folder, None) == [str(wheel)]
    with pytest.raises(RuntimeError, match="could not be installed"):
        opened(monkeypatch, folder, None, code=1)


def release(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["release", "notebooks", *arguments])
    return result.exit_code, result.output


def test_the_command_writes_what_has_changed(tmp_path: Path, made: dict[str, bytes]) -> None:
    code, said = release("--root", str(ROOT), "--out", str(tmp_path))
    assert code == 0
    assert said.splitlines() == [f"written: {tmp_path / name}" for name in made]
    assert {name: (tmp_path / name).read_bytes() for name in made} == made
    assert release("--root", str(ROOT), "--out", str(tmp_path)) == (
        0,
        "All 13 notebooks of day8 are up to date.\n",
    )
    (tmp_path / WHOLE).write_text("{}", encoding="utf-8")
    assert release("--root", str(ROOT), "--out", str(tmp_path)) == (
        0,
        f"written: {tmp_path / WHOLE}\n",
    )


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f():\n    # BEGIN SOLUTION\n    return 1\n", "2: a solution begins and does not end"),
        (
            "def f(:\n    # BEGIN SOLUTION\n    return 1\n    # END SOLUTION\n",
            "1: this is not Python: ",
        ),
    ],
)
def test_a_reference_that_cannot_be_used_is_a_sentence_and_no_file(
    tmp_path: Path, source: str, why: str
) -> None:
    assert release("--root", str(tmp_path)) == (
        1,
        f"Error: there is no folder {tmp_path / 'reference' / 'day8'}\n",
    )
    folder = tmp_path / "reference" / "day8"
    folder.mkdir(parents=True)
    shutil.copy(REFERENCE / "01_checking_device.py", folder)
    (folder / "bad.py").write_text(source)
    code, said = release("--root", str(tmp_path), "--out", str(tmp_path / "out"))
    assert code == 1
    assert f"Error: {folder / 'bad.py'}:{why}" in said
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadMarkers):
        notebooks.notebooks_of_day(tmp_path, "day8")


def test_a_file_without_a_title_or_a_demo_is_still_a_notebook(tmp_path: Path) -> None:
    path = tmp_path / "new_one.py"
    path.write_text(
        "import torch\n\n"
        "# what this is for\n"
        "LIMIT = 3\n\n\n"
        "@torch.no_grad()\n"
        "def f(x: int, *, y=LIMIT):\n"
        '    """Add * to <b>.\n\n    2 lines. Read: https://example.org/a_b\n    """\n'
        "    # BEGIN SOLUTION\n    return x\n    # END SOLUTION\n"
    )
    title, given, task = sections.split_into_sections(path)
    assert title.text == "new one"
    assert given.code == "import torch\n\n# what this is for\nLIMIT = 3"
    assert isinstance(task, sections.Task)
    assert task.code == (
        "@torch.no_grad()\n"
        "def f(x: int, *, y=LIMIT):\n"
        '    """Add * to <b>."""\n'
        "    raise NotImplementedError"
    )
    assert sections.task_text(task) == (
        "### `f(x: int, *, y=LIMIT)`\n\n"
        "Add \\* to \\<b>.\n\n"
        "*2 lines.* Read: <https://example.org/a_b>"
    )
