"""A release, an environment with its grader, and checkouts graded in it as a workflow does.

Each is made once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gpudojo.platforms.classroom.checkouts import lay_out
from tests.gpudojo.release.conftest import release
from tests.sharing import once

ROOT = Path(__file__).parents[4]
REFERENCE = ROOT / "reference" / "day8"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workflows run on Linux")


@dataclass(frozen=True)
class Ran:
    """A checkout, and what `dojo classroom` said and wrote about it."""

    checkout: Path
    status: int
    log: str
    files: dict[str, str]  # what GitHub's files hold, by variable
    out: Path


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student's repository; the one that the tests of releases look at."""
    if sys.platform != "linux":
        pytest.skip("workflows run on Linux")
    return once(tmp_path_factory, "released", release).folder


def environment_at(folder: Path) -> Path:
    """Python in an environment of its own that borrows what this one has, but not this gpudojo."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return python


@pytest.fixture(scope="session")
def python(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released grader, installed."""

    def make(folder: Path) -> Path:
        made = environment_at(folder / "dojo")
        (wheel,) = (released / "vendor").glob("*.whl")
        command = [
            str(made),
            "-I",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ]
        subprocess.run(command, check=True, env=bare(), capture_output=True)
        return made

    return once(tmp_path_factory, "environment", make)


def bare(**more: str) -> dict[str, str]:
    """The environment of a workflow, without what tests have set."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"PIP_NO_INDEX": "1", "PIP_ROOT_USER_ACTION": "ignore"} | more


Grade = Callable[..., Ran]


@pytest.fixture(scope="session")
def classroom(released: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Grade:
    """Grades a kind of checkout as both workflows do; the same kind is graded once."""

    def grade(kind: str, *options: str, **more: str) -> Ran:
        def run(base: Path) -> Ran:
            checkout = base / "day8-alice"
            temp = base / "temp"
            out = base / "out"
            for folder in (temp, out):
                folder.mkdir()
            names = (
                "GITHUB_OUTPUT",
                "GITHUB_STEP_SUMMARY",
                "GITHUB_ENV",
                "GITHUB_PATH",
                "GITHUB_STATE",
            )
            paths = {name: temp / name.lower() for name in names}
            for path in paths.values():
                path.touch()
            paths["GITHUB_STEP_SUMMARY"].write_text("of a step before\n")
            lay_out(kind, checkout, released, list(paths.values()))
            environment = bare(
                GITHUB_ACTIONS="true",
                GITHUB_WORKSPACE=str(checkout),
                DOJO_RELEASE=manifest_in(released),
                **IDENTITY,
                **{name: str(path) for name, path in paths.items()},
                **more,
            )
            command = [
                str(python),
                "-I",
                "-m",
                "gpudojo",
                "classroom",
                str(checkout),
                "--out",
                str(out),
                *options,
            ]
            # from inside the checkout, which a workflow does not do: nothing that lies there may
            # have a say
            done = subprocess.run(
                command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300
            )
            files = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
            return Ran(checkout, done.returncode, done.stdout + done.stderr, files, out)

        return once(tmp_path_factory, "-".join(["checkout", kind, *options, *more]), run)

    return grade


IDENTITY = {
    "CLASSROOM": "gpu-course",
    "ASSIGNMENT": "day8",
    "SUBMISSION_TAG": "submit/2026-11-15T05-37-00Z-1a2b3c4",
    "COMMIT_URL": "https://github.com/gpu-course/day8-alice/commit/1a2b3c4",
    "RELEASE_URL": "https://github.com/gpu-course/day8-alice/releases/tag/submit%2F2026",
    "OWNER": "alice",
}


def manifest_in(released: Path) -> str:
    """The manifest as the workflow hands it to the grader."""
    workflow = (released / ".github" / "workflows" / "classroom.yml").read_text(encoding="utf-8")
    (line,) = (line for line in workflow.splitlines() if "DOJO_RELEASE:" in line)
    return line.partition("'")[2].rstrip("'")
