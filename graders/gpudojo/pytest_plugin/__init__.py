"""The pytest plugin: collects exercise files and runs their checks.

Every pytest run in an environment with gpudojo imports this module, so it imports nothing else of ours. The rest is
loaded with the first exercise file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from gpudojo.pytest_plugin.hooks import ExerciseHooks

NUMBERED: Final = re.compile(r"\d\d_\w+")  # the stem of an exercise file: 01_checking_device
DAY: Final = re.compile(rb"day[1-9]\d{0,2}")
HOOKS: Final = "gpudojo-exercises"  # the name of the plugin that does the work


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{number} is less than 0")
    return number


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "bench": {
        "choices": ("auto", "virtual", "cuda", "mps", "cpu"),
        "default": "auto",
        "help": "device that student code runs on; auto: the real GPU if there is one, else the virtual GPU",
    },
    "hints": {
        "type": _count,
        "default": 1,
        "metavar": "N",
        "help": "show the first N hints (default: 1)",
    },
    "seed": {"type": int, "help": "seed of the scenarios (default: the public seed)"},
    "timeline": {
        "action": "store_true",
        "help": "draw what each function did: copies, waits, memory",
    },
    # The short form is not --trace, which is pytest's own.
    "traces": {
        "type": Path,
        "metavar": "DIR",
        "help": "write one JSON trace per function, for ui.perfetto.dev",
    },
}


def pytest_addoption(parser: pytest.Parser) -> None:
    _add_options(parser, "--dojo-")


def short_options(parser: pytest.Parser) -> None:
    """Adds `--bench`, `--hints`, `--seed`, `--timeline`, `--traces`. A conftest.py imports it as `pytest_addoption`."""
    _add_options(parser, "--")
    parser.addoption(
        "--dojo-short-options", action="store_true", default=True, help=argparse.SUPPRESS
    )


def _add_options(parser: pytest.Parser, prefix: str) -> None:
    group = parser.getgroup("gpudojo", "gpudojo: exercises in GPU programming")
    for name, settings in OPTIONS.items():
        group.addoption(f"{prefix}{name}", dest=f"dojo_{name}", **settings)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not is_exercise(file_path, parent.session.isinitpath(file_path)):
        return None
    return _hooks(parent.config).collect_file(file_path, parent)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    # pytest would import a file that is named on its command line, and a student's syntax error would stop everything.
    return (
        _hooks(parent.config).no_module(module_path, parent) if is_exercise(module_path) else None
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    files = {node.config.rootpath / each.partition("::")[0] for each in ids}
    if any(file.suffix == ".ipynb" or is_exercise(file) for file in files):
        _hooks(node.config).collected_by_worker(ids)


def is_exercise(path: Path, named: bool = False) -> bool:
    """Whether a file is an exercise, or a notebook that may hold some; `named`: on the command line.

    It imports no day, and nothing at all for a file that is not named like an exercise.
    """
    notebook = path.suffix == ".ipynb"
    if not notebook and path.suffix != ".py":
        return False
    if NUMBERED.fullmatch(path.stem):
        from gpudojo.model.catalogue import day_of_file

        if day_of_file(path) is not None:
            return True
    if named or not notebook:
        return notebook
    mentioned: set[bytes] = set()
    with contextlib.suppress(OSError):
        mentioned.update(DAY.findall(os.fsencode(path) + b"\n" + path.read_bytes()))
    if mentioned:
        from gpudojo.model.catalogue import day_names

        return not mentioned.isdisjoint(map(str.encode, day_names()))
    return False


def _hooks(config: pytest.Config) -> ExerciseHooks:
    found: ExerciseHooks | None = config.pluginmanager.getplugin(HOOKS)
    if found is None:
        from gpudojo.pytest_plugin.hooks import ExerciseHooks

        found = ExerciseHooks(config)
        config.pluginmanager.register(found, HOOKS)
    return found
