"""The plugin in a project that has nothing to do with it, and beside other plugins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import util

import pytest

from tests.gpudojo.pytest_plugin.conftest import REPOSITORY, Student

# By the name of the entry point: the module, and options that make the plugin do something.
PLUGINS = {
    "xdist": ("xdist", "-n", "2"),
    "pytest_cov": ("pytest_cov", "--cov", ".", "--cov-report", ""),
    "randomly": ("pytest_randomly", "--randomly-seed", "3"),
    "asyncio": ("pytest_asyncio", "--asyncio-mode", "auto"),
    "rerunfailures": ("pytest_rerunfailures", "--reruns", "1"),
}
THIN = ["gpudojo", "gpudojo.pytest_plugin"]
# The kinds of device are the choices of an option.
KINDS = [
    "virtual_cuda",
    "virtual_cuda.device_kinds",
    "virtual_cuda.hooks",
    "virtual_cuda.lazy_names",
]
DEVICE = [*KINDS, "virtual_cuda.pytest_plugin"]
CATALOGUE = ["gpudojo.model", "gpudojo.model.catalogue"]  # asked only about files named 01_x.py
CONFTEST = """
def pytest_addoption(parser):
    for name in ("--seed", "--bench", "--hints", "--timeline", "--traces"):
        parser.addoption(name, default="none", help="the project's own")
"""
TESTS = """
import sys

import graders  # the project's own package


def test_own_package_and_options(request):
    assert graders.OWN
    found = [request.config.getoption(name) for name in ("seed", "bench", "hints")]
    assert found == ["7", "none", "many"]


def test_environment():
    import os

    assert "KINETO_LOG_LEVEL" not in os.environ


def test_modules():
    packages = ("gpudojo", "virtual_cuda")
    ours = sorted(name for name in sys.modules if name.partition(".")[0] in packages)
    assert ours == EXPECTED


def test_flaky(tries=[]):
    tries.append(1)
    assert len(tries) > FAILURES
"""


def project(student: Student, *, numbered: bool = False, failures: int = 0) -> None:
    """A made-up project with a package `graders`, options named as our short ones, and files named
    as exercises are.
    """
    student.write("conftest.py", CONFTEST)
    student.write("graders/__init__.py", "OWN = True\n")
    expected = sorted(THIN + DEVICE + (CATALOGUE if numbered else []))
    student.write(
        "tests/test_own.py",
        TESTS.replace("EXPECTED", repr(expected)).replace("FAILURES", str(failures)),
    )
    student.write("pytest.ini", "[pytest]\npythonpath = .\n")
    student.write("notes.txt", "day8")
    if numbered:
        student.write("scripts/01_x.py", "raise SystemExit('nobody asked for this')\n")
        student.notebook("scripts/02_plots.ipynb", "import numpy")
        student.notebook("scripts/diary.ipynb", "# on day1 nothing worked")


def run(student: Student, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own that has loaded nothing before, with both of our plugins."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"},
        "PYTHONPATH": str(REPOSITORY / "graders"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p gpudojo.pytest_plugin -p virtual_cuda.pytest_plugin",
    }
    command = [sys.executable, "-m", "pytest", "--seed", "7", "--hints", "many", *arguments]
    return subprocess.run(
        command, cwd=student.folder, env=environment, capture_output=True, text=True, timeout=300
    )


def beside() -> list[str]:
    """The options that load all of these plugins; skips where one is not installed."""
    missing = [module for module, *_ in PLUGINS.values() if util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return [part for name, (_, *options) in PLUGINS.items() for part in ("-p", name, *options)]


@pytest.mark.parametrize(
    "numbered", [False, True], ids=["without", "with files named like exercises"]
)
def test_an_unrelated_project_loads_the_thin_module_only(student: Student, numbered: bool) -> None:
    project(student, numbered=numbered)
    done = run(student, "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert "points" not in done.stdout


@pytest.mark.slow
def test_an_unrelated_project_with_other_plugins(student: Student) -> None:
    project(student, failures=1)
    done = run(student, *beside())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 1 rerun" in done.stdout


def test_a_numbered_test_file_of_another_project_runs(student: Student) -> None:
    project(student)
    student.write("01_x.py", "def test_x():\n    pass\n")
    done = run(student, "01_x.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_exercises_with_other_plugins(student: Student) -> None:
    name = "02_moving_model_to_device.py"
    for folder in ("exercises", "reference"):
        target = student.write(f"{folder}/day8/{name}", "")
        shutil.copy(REPOSITORY / folder / "day8" / name, target)
    done = student.pytest("--seed", "9", *beside())
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("= points =") == 1
    assert (
        done.stdout.count("device: virtual (no GPU here, so the virtual CUDA device), seed 9") == 1
    )
    assert "8 of 8     done" in done.stdout
    assert "0 of 8     to do" in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_what_is_to_be_mended_first_is_told_first_in_any_order(student: Student) -> None:
    clock = (
        REPOSITORY / "tests" / "day8" / "wrong" / "10_timing_and_profiling" / "clock_never_waits.py"
    )
    compare = (
        "return {str(each): time_on_device(make_work(each), each, repeats) for each in devices}"
    )
    source = clock.read_text(encoding="utf-8").partition("def compare")[0]
    path = "day8/10_timing_and_profiling.py"
    student.write(
        path, f"{source}\n\ndef compare_devices(make_work, devices, repeats=3):\n    {compare}\n"
    )
    target = student.write(f"reference/{path}", "")
    shutil.copy(REPOSITORY / "reference" / path, target)
    _, *options = PLUGINS["randomly"]
    shuffled = ["-p", "pytest_randomly", *options] if util.find_spec("pytest_randomly") else []
    asked = [f"{path}::{name}" for name in ("compare_devices", "time_on_device")]
    said = student.pytest(*shuffled, *asked).stdout
    callee, caller = said.partition("= points =")[0].split(
        "_ compare_devices: times_each_as_it_should _"
    )
    assert "_ time_on_device: waits_for_the_device _" in callee
    assert "mistake   timing without synchronising" in callee
    assert re.search(r"^  worth     [\d.]+ points?$", callee, re.M), callee
    assert "first     fix time_on_device::waits_for_the_device" in caller
    assert ("mistake " in caller, "first " in callee) == (False, False)


def test_without_the_conftest_only_the_long_options_exist(student: Student) -> None:
    (student.folder / "conftest.py").unlink()
    student.write(
        "day8/01_checking_device.py", "def select_device(prefer=None):\n    return 'cuda'\n"
    )
    refused = student.pytest("--hints", "2", "day8")
    assert "unrecognized arguments: --hints" in refused.stderr
    done = student.pytest("--dojo-hints", "2", "--dojo-seed", "9", "--dojo-bench", "cpu", "day8")
    assert "seed 9" in done.stdout
    assert "one more with --dojo-hints 3" in done.stdout


def test_importing_the_plugin_changes_nothing() -> None:
    script = (
        "import os, sys, pytest\n"
        "environment, modules = dict(os.environ), set(sys.modules)\n"
        "import gpudojo.pytest_plugin\n"
        "assert dict(os.environ) == environment\n"
        "print(*sorted(set(sys.modules) - modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [*THIN, *KINDS]
