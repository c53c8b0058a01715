"""`make matrix`: the same four things on every release of torch that people have.

Each release gets an environment of its own, one after another: a build with CUDA takes up to
6 GB. It is removed afterwards, unless `--keep` is given behind `--`.

    nox                              every release of RELEASES
    nox -s "matrix(torch='2.15')"    one of them
    nox -- --keep                    keep the environments for another look
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
RELEASES = ("2.10", "2.11", "2.13", "2.14", "2.15")
TESTS_NEED = ("filelock", "hypothesis", "pytest-xdist")  # imported by tests/conftest.py

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["matrix"]


class Part(NamedTuple):
    """One thing that must work on a release: a name for the table, and what runs it."""

    name: str
    run: Callable[[nox.Session], None]


def check_references(session: nox.Session) -> None:
    session.run("python", "-m", "pytest", "-q", "reference/day8")


def check_programs(session: nox.Session) -> None:
    test = "tests/virtual_cuda/test_programs.py"
    session.run("python", "-m", "pytest", "-q", "-m", "slow or not slow", test)


def check_class(session: nox.Session) -> None:
    test = "tests/test_examples.py::test_the_class_is_graded_as_the_readme_says"
    session.run("python", "-m", "pytest", "-q", test)


def check_plugin(session: nox.Session) -> None:
    """Run the tests of a project that knows nothing of gpudojo, elsewhere."""
    project = Path(session.create_tmp()) / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(ROOT / "examples" / "project", project)
    with session.chdir(project):
        session.run("python", "-m", "pytest", "-q", "--virtual-cuda")


PARTS = (
    Part("references", check_references),
    Part("15 programs", check_programs),
    Part("class of ten", check_class),
    Part("--virtual-cuda", check_plugin),
)


def write_constraints(session: nox.Session, torch: str) -> Path:
    """Return a file with the project's constraints, for another release of torch."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    others = [line for line in lines if not line.startswith("torch==")]
    path = Path(session.create_tmp()) / "constraints.txt"
    path.write_text("\n".join([*others, f"torch=={torch}.*", ""]), encoding="utf-8")
    return path


@nox.session
@nox.parametrize("torch", RELEASES)
def matrix(session: nox.Session, torch: str) -> None:
    """Run every part on one release, also after one has failed, and say what passed."""
    constraints = write_constraints(session, torch)
    session.install("-c", str(constraints), "torch")
    session.install("-c", str(constraints), "-e", ".", *TESTS_NEED)
    outcomes = []
    for part in PARTS:
        began = time.monotonic()
        try:
            part.run(session)
        except CommandFailed:
            outcome = "FAILED"
        else:
            outcome = "ok"
        outcomes.append((part.name, outcome, time.monotonic() - began))
    for name, outcome, seconds in outcomes:
        session.log(f"torch {torch:6} {name:16} {outcome:6} {seconds:4.0f} s")
    if "--keep" not in session.posargs:
        shutil.rmtree(session.virtualenv.location)
    if any(outcome != "ok" for _, outcome, _ in outcomes):
        session.error(f"torch {torch}: not everything works")
