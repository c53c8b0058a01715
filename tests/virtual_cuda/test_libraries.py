"""Who is a student is not told by how a path is spelt: what is installed counts as a library,
wherever it lies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

GRADERS = Path(__file__).resolve().parents[2] / "graders"
ASK = """
import sys, installed, project
from virtual_cuda.hooks import from_library
print(from_library(installed.__file__), from_library(project.__file__))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package as it is handed out: one module, and what an installer needs."""
    path = tmp_path_factory.mktemp("wheel") / "installed-1.0-py3-none-any.whl"
    about = "installed-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("installed.py", "")
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: installed\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "installed.py,,\n")
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which something is only developed."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "project.py").touch()
    (folder / "project.egg-info").mkdir()
    (folder / "project.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: project\n")
    return folder


def ask(project: Path, *paths: Path, python: str = sys.executable) -> str:
    """Whether a fresh process takes the package, and the project, for libraries."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, [project, *paths, GRADERS])))
    run = subprocess.run(
        [python, "-c", ASK], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def install(wheel: Path, *options: str) -> None:
    quietly = ("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *quietly, *options, str(wheel)], check=True
    )


def test_a_package_installed_into_a_folder_is_a_library(
    wheel: Path, project: Path, tmp_path: Path
) -> None:
    install(wheel, "--target", str(tmp_path / "vendored"))
    assert ask(project, tmp_path / "vendored") == "True False"


def test_a_package_found_by_a_pth_file_is_a_library(
    wheel: Path, project: Path, tmp_path: Path
) -> None:
    install(wheel, "--target", str(tmp_path / "elsewhere"))
    python = environment_in(tmp_path / "environment", tmp_path / "elsewhere")
    assert ask(project, python=python) == "True False"


def test_a_package_in_a_zip_is_a_library(wheel: Path, project: Path, tmp_path: Path) -> None:
    install(wheel, "--target", str(tmp_path / "vendored"))
    archive = shutil.make_archive(str(tmp_path / "vendored"), "zip", tmp_path / "vendored")
    assert ask(project, Path(archive)) == "True False"


def test_an_environment_beside_a_submission_makes_no_library_of_it(
    wheel: Path, project: Path
) -> None:
    python = environment_in(project.parent / ".venv")
    install(wheel, "--target", str(packages_of(project.parent / ".venv")))
    assert ask(project, python=python) == "True False"


def environment_in(folder: Path, *paths: Path) -> str:
    """Make an environment that also has what is installed here, and these paths; its Python."""
    venv.create(folder, symlinks=True)
    here = sysconfig.get_path("purelib")
    (packages_of(folder) / "here.pth").write_text("\n".join(map(str, [here, *paths])) + "\n")
    return str(folder / "bin" / "python")


def packages_of(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))
