"""How are notebooks graded by nbgrader and by otter-grader?

The same claims, as each wants its tests and cells.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import nbformat

from benchmarks.measuring import measure_command
from benchmarks.peers import assignment, verdicts
from benchmarks.peers.assignment import FUNCTIONS, Submission, cell_of
from benchmarks.peers.tool import (
    CLAIMS,
    HERE,
    Graded,
    Tool,
    claims_and_functions,
    copy_beside_tests,
)

ASSIGNMENT = "day8"


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def nbgrader_notebook(files: dict[str, str]) -> nbformat.NotebookNode:
    """Cells to be filled in, marked as such, and after them a locked test cell for each claim, a
    point each.
    """
    marked = {
        stem: {
            "nbgrader": _marks(cell_of(stem), solution=True, grade=False, locked=False, points=None)
        }
        for stem in files
    }
    notebook = assignment.notebook_of(files, marked)
    for name, function in claims_and_functions().items():
        cell = nbformat.v4.new_code_cell(
            f"import claims\n\nclaims.CLAIMS[{name!r}]({function})", id=f"t-{name}"[:64]
        )
        cell["metadata"]["nbgrader"] = _marks(
            f"test_{name}", solution=False, grade=True, locked=True, points=1
        )
        notebook["cells"].append(cell)
    return notebook


def _marks(
    grade_id: str, *, solution: bool, grade: bool, locked: bool, points: int | None
) -> dict[str, object]:
    marks = {"schema_version": 3, "task": False, "grade_id": grade_id, "cell_type": "code"}
    more = {} if points is None else {"points": points}
    return marks | {"solution": solution, "grade": grade, "locked": locked} | more


class Nbgrader(Tool):
    """`nbgrader autograde` of a class: a kernel for each notebook, one after another."""

    name = package = "nbgrader"
    form = "notebook"
    isolation = "none: a kernel each, as the teacher's user"

    def prepare(self, known: Sequence[Submission]) -> None:
        source = self.place / "course" / "source" / ASSIGNMENT
        _write(
            nbgrader_notebook({stem: assignment.stub_source(stem) for stem in FUNCTIONS}),
            source / "day8.ipynb",
        )
        copy_beside_tests(CLAIMS, source)
        self._do("generate_assignment", ASSIGNMENT)

    def _do(self, *words: str) -> None:
        run = subprocess.run(
            [str(self.python), "-m", "nbgrader", *words],
            cwd=self.place / "course",
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if run.returncode:
            raise RuntimeError(f"nbgrader {words[0]}: {run.stdout[-500:]}")

    def grade(self, given: Sequence[Submission]) -> Graded:
        submitted = self.place / "course" / "submitted"
        shutil.rmtree(submitted, ignore_errors=True)
        for submission in given:
            _write(
                nbgrader_notebook(submission.files),
                submitted / submission.name / ASSIGNMENT / "day8.ipynb",
            )
        command = [str(self.python), "-m", "nbgrader", "autograde", ASSIGNMENT, "--force"]
        graded = Graded()
        graded.add(measure_command(command, self.place / "course", self.environment()))
        self._do("export", "--to", "grades.csv")
        text = (self.place / "course" / "grades.csv").read_text(encoding="utf-8")
        found = verdicts.from_nbgrader(text, ASSIGNMENT)
        graded.verdicts = {s.name: found.get(s.name, verdicts.NOTHING) for s in given}
        return graded


OTTER_TEST = """from otter.test_files import test_case

OK_FORMAT = False

name = "{name}"
points = 1


@test_case()
def test_{name}({function}):
    import claims

    claims.CLAIMS["{name}"]({function})
"""


class Otter(Tool):
    """`otter run`, its way without containers: for each notebook a process that starts a kernel."""

    name = package = "otter-grader"
    form = "notebook"
    isolation = "`otter run`: none, a kernel each; `otter grade`: a container each"

    def prepare(self, known: Sequence[Submission]) -> None:
        for submission in known:
            _write(
                assignment.notebook_of(submission.files),
                self.place / "class" / f"{submission.name}.ipynb",
            )
        config = '{"show_stdout": false, "zips": false, "plugins": []}'
        with zipfile.ZipFile(self.place / "autograder.zip", "w") as archive:
            archive.writestr("otter_config.json", config)
            for name in CLAIMS:
                archive.write(HERE / name, f"files/{name}")
            for name, function in claims_and_functions().items():
                archive.writestr(
                    f"tests/{name}.py", OTTER_TEST.format(name=name, function=function)
                )

    def grade(self, given: Sequence[Submission]) -> Graded:
        graded = Graded()
        wanted = len(claims_and_functions())
        for submission in given:
            out = self.place / "out" / submission.name
            out.mkdir(parents=True, exist_ok=True)
            notebook = str(self.place / "class" / f"{submission.name}.ipynb")
            zipped = str(self.place / "autograder.zip")
            command = [
                str(self.python),
                "-m",
                "otter",
                "run",
                "--no-logo",
                "-a",
                zipped,
                "-o",
                str(out),
                notebook,
            ]
            graded.add(measure_command(command, self.place, self.environment()))
            results = out / "results.json"
            text = ""
            if results.exists():
                text = results.read_text(encoding="utf-8")
            graded.verdicts[submission.name] = (
                verdicts.from_gradescope(text, wanted) if text else verdicts.NOTHING
            )
        return graded
