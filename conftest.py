"""Fixtures and options of every test run in this repository.

Nothing here ignores a folder: the files under exercises/ and reference/ are collected by the plugin, as students' are.
"""

import importlib.util
import os

import pytest
from gpudojo.pytest_plugin import short_options as pytest_addoption  # noqa: F401 - `--hints` for `--dojo-hints`

# A process that has used a real GPU cannot open a virtual one. The tests that want the real one are run by naming it:
# CUDA_VISIBLE_DEVICES=0 python -m pytest tests/virtual_cuda/test_real.py
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

pytest_plugins = ["pytester"]

EXERCISES = "the exercises: pytest exercises/day8"


def pytest_configure(config: pytest.Config) -> None:
    lacking = [
        name
        for name in ("filelock", "hypothesis", "xdist")
        if importlib.util.find_spec(name) is None
    ]
    if lacking and config.args_source is not pytest.Config.ArgsSource.ARGS:
        needed = f"this runs the project's own tests, which need {', '.join(lacking)}: pip install -e '.[dev]'"
        raise pytest.UsageError(f"{needed} ({EXERCISES})")


def pytest_report_header(config: pytest.Config) -> str:
    own = config.args_source is not pytest.Config.ArgsSource.ARGS
    return f"these are the project's own tests, faster with -n auto; {EXERCISES}" if own else ""


pytest.register_assert_rewrite("tests.solutions")
