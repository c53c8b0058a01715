"""`make matrix`: the same things on every release of torch, and on every Python, that people have.

Each pair gets an environment of its own, one after another: a build with CUDA takes up to 6 GB. It
is removed afterwards.

    nox                                        what is tried by default
    nox --list                                 all pairs; the default ones have a star
    nox -s "matrix-3.13(torch='2.15')"         one of them
    nox -- --write                             and write the rows of docs/releases.md
    nox -- --keep                              keep the environments for another look
    nox -- class fixture                       only the parts whose names have one of these words
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
TABLE = ROOT / "docs" / "releases.md"
BEGIN = "<!-- releases -->"
END = "<!-- /releases -->"
RELEASES = ("2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
NIGHTLY = "nightly"  # tried where pip is told of an index that has one
PINNED = "2.13"  # by constraints.txt
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
FIRST_PYTHON = "3.11"
OTHER_PYTHONS = ("3.12", "3.13")  # tried with the pinned and the newest release
TESTS_NEED = ("expecttest", "filelock", "hypothesis", "pytest-xdist")
ALL_TESTS = ("-m", "slow or not slow")
TWO_PROCESSES = ("-n", "2", "--dist", "worksteal")


class Part(NamedTuple):
    """One thing that must work on a release: a name for the table, and what runs it."""

    name: str
    run: Callable[[nox.Session], None]


def run_pytest(session: nox.Session, *arguments: str) -> None:
    session.run("python", "-m", "pytest", "-q", *arguments)


def check_references(session: nox.Session) -> None:
    run_pytest(session, "reference/day8")


def check_solutions(session: nox.Session) -> None:
    """Every kept solution, right and wrong, gets the verdict that it is kept for."""
    run_pytest(session, *TWO_PROCESSES, *ALL_TESTS, "tests/day8/test_solutions.py")


def check_programs(session: nox.Session) -> None:
    run_pytest(session, *ALL_TESTS, "tests/virtual_cuda/test_programs.py")


def check_conformance(session: nox.Session) -> None:
    """All snippets that an H200 has run agree with it as far as they must on any release."""
    run_pytest(session, *ALL_TESTS, "tests/virtual_cuda/conformance/test_conformance.py")


def check_device(session: nox.Session) -> None:
    run_pytest(session, *TWO_PROCESSES, "tests/virtual_cuda")


def check_class(session: nox.Session) -> None:
    test = "tests/test_examples.py::test_the_class_is_graded_as_the_readme_says"
    run_pytest(session, test)


def check_fixture(session: nox.Session) -> None:
    """Run tests with the fixture `virtual_cuda` in a folder that knows nothing of gpudojo."""
    with temporary_folder() as project, session.chdir(project):
        for example in (ROOT / "examples").glob("test_*.py"):
            shutil.copy(example, project)
        run_pytest(session)


def check_plugin(session: nox.Session) -> None:
    """Run the tests of a project that knows nothing of gpudojo with `--virtual-cuda`."""
    with temporary_folder() as project, session.chdir(project):
        shutil.copytree(ROOT / "examples" / "project", project, dirs_exist_ok=True)
        run_pytest(session, "--virtual-cuda")


PARTS = (
    Part("references", check_references),
    Part("kept solutions", check_solutions),
    Part("whole models", check_programs),
    Part("conformance", check_conformance),
    Part("tests of the device", check_device),
    Part("fixture", check_fixture),
    Part("`--virtual-cuda`", check_plugin),
    Part("class of ten", check_class),
)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder outside of the project, where pytest does not find the project's settings.

    nox's own, `session.create_tmp()`, is inside, and so would be all temporary files of tests.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def write_constraints(session: nox.Session, torch: str) -> Path:
    """Return a file with the project's constraints, for another release of torch."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = [line for line in lines if not line.startswith("torch==")]
    if torch != NIGHTLY:
        constraints.append(f"torch=={torch}.*")
    path = Path(session.virtualenv.location) / "constraints.txt"
    path.write_text("\n".join([*constraints, ""]), encoding="utf-8")
    return path


def install_project(session: nox.Session, torch: str) -> str:
    """Install a release of torch, and the project beside it; return torch's exact version."""
    constraints = str(write_constraints(session, torch))
    options = ("--pre",) if torch == NIGHTLY else ()
    session.install("-c", constraints, *options, "torch")
    session.install("-c", constraints, "-e", ".[cluster,watch]", *TESTS_NEED)
    question = "from importlib.metadata import version; print(version('torch'))"
    answer = session.run("python", "-c", question, silent=True)
    return str(answer).strip()


def run_part(session: nox.Session, part: Part) -> bool:
    """Run one part, log how long it took, and return whether it passed."""
    began = time.monotonic()
    try:
        part.run(session)
    except CommandFailed:
        passed = False
    else:
        passed = True
    outcome = "ok" if passed else "FAILED"
    session.log(f"{session.name}: {part.name}: {outcome}, {time.monotonic() - began:.0f} s")
    return passed


# ---- the table in docs/releases.md ---------------------------------------------------------------


def write_row(torch: str, python: str, outcomes: dict[str, bool]) -> None:
    """Put what passed, by the name of the part, into the row of a release and a Python.

    Other rows, and parts that were not run, stay as they were.
    """
    before, _, rest = TABLE.read_text(encoding="utf-8").partition(BEGIN)
    old_table, _, after = rest.partition(END)
    columns = ["torch", "Python", *(part.name for part in PARTS), "tried on"]
    rows = {}
    for line in old_table.splitlines()[4:]:  # after an empty line, headings and dashes
        if line:
            row = dict(zip(columns, cells_of(line), strict=True))
            rows[row["torch"], row["Python"]] = row
    row = rows.setdefault((torch, python), dict.fromkeys(columns, "–"))
    row["torch"] = torch
    row["Python"] = python
    row["tried on"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    for name, passed in outcomes.items():
        row[name] = "yes" if passed else "**no**"
    lines = [columns, ["---"] * len(columns)]
    for pair in sorted(rows, key=lambda pair: (version_key(pair[0]), version_key(pair[1]))):
        lines.append(list(rows[pair].values()))
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    TABLE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def cells_of(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip("| ").split("|")]


def version_key(version: str) -> tuple[int, ...]:
    """What sorts versions: "2.9.1" before "2.10.0+cpu"."""
    public = version.partition("+")[0]
    return tuple(int(number) for number in public.split(".") if number.isdigit())


# ---- the session ---------------------------------------------------------------------------------


def names_of_default_sessions() -> list[str]:
    """Every release on the first Python; the pinned and the newest one on others, too."""
    pairs = [(FIRST_PYTHON, torch) for torch in RELEASES]
    for python in OTHER_PYTHONS:
        pairs += [(python, PINNED), (python, RELEASES[-1])]
    return [f"matrix-{python}(torch='{torch}')" for python, torch in pairs]


def parts_asked_for(arguments: list[str]) -> list[Part]:
    """The parts whose names have one of the words among the arguments; all without a word."""
    words = [argument for argument in arguments if not argument.startswith("--")]
    if not words:
        return list(PARTS)
    return [part for part in PARTS if any(word in part.name for word in words)]


nox.options.default_venv_backend = "venv"
nox.options.sessions = names_of_default_sessions()


@nox.session(python=PYTHONS)
@nox.parametrize("torch", [*RELEASES, NIGHTLY])
def matrix(session: nox.Session, torch: str) -> None:
    """Run every part on one release, also after one has failed, and say what passed."""
    version = install_project(session, torch)
    outcomes = {}
    for part in parts_asked_for(session.posargs):
        outcomes[part.name] = run_part(session, part)
    for name, passed in outcomes.items():
        session.log(f"torch {version:10} {name:20} {'ok' if passed else 'FAILED'}")
    if "--write" in session.posargs:
        write_row(version.partition("+")[0], str(session.python), outcomes)
    if "--keep" not in session.posargs:
        shutil.rmtree(session.virtualenv.location)
    if not all(outcomes.values()):
        session.error(f"torch {version}: not everything works")
