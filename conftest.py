"""Fixtures and options of every test run in this repository.

Nothing here ignores a folder: the files under exercises/ and reference/ are collected by the
plugin, as students' are.
"""

import importlib.metadata
import importlib.util
import sys

import pytest

try:
    importlib.metadata.distribution("gpudojo")
except importlib.metadata.PackageNotFoundError:
    # Not an Exception: pytest would show the frames that led here.
    sys.exit(
        f"gpudojo is not installed in this Python ({sys.executable}). Switch on the environment "
        "that has it (. .venv/bin/activate), or install it: pip install -c constraints.txt -e ."
    )

from gpudojo.pytest_plugin import short_options as pytest_addoption  # noqa: F401

pytest_plugins = ["pytester"]

EXERCISES = "the exercises: pytest exercises/day8"


def pytest_configure(config: pytest.Config) -> None:
    lacking = [
        name
        for name in ("filelock", "hypothesis", "xdist")
        if importlib.util.find_spec(name) is None
    ]
    if lacking and config.args_source is not pytest.Config.ArgsSource.ARGS:
        needed = (
            f"this runs the project's own tests, which need {', '.join(lacking)}: pip install -e "
            "'.[dev]'"
        )
        raise pytest.UsageError(f"{needed} ({EXERCISES})")


def pytest_report_header(config: pytest.Config) -> str:
    own = config.args_source is not pytest.Config.ArgsSource.ARGS
    return f"these are the project's own tests, faster with -n auto; {EXERCISES}" if own else ""


pytest.register_assert_rewrite("gpudojo.authoring.solution_tests")
