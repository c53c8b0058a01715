"""The pytest plugin: collects exercise files and runs their checks.

Every pytest run in an environment with gpudojo imports this module, so it imports only a list of
ours. The rest is loaded with the first exercise file.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from virtual_cuda.hooks import DEVICE_CHOICES

if TYPE_CHECKING:
    from gpudojo.pytest_plugin.hooks import ExerciseHooks

NUMBERED: Final = re.compile(r"\d\d_\w+")  # the stem of an exercise file: 01_checking_device
DAY: Final = re.compile(rb"day[1-9]\d{0,2}")
HOOKS: Final = "gpudojo-exercises"  # the name of the plugin that does the work


def _parse_count(text: str) -> int:
    """A number that is not negative.

    Raises ValueError or ArgumentTypeError for others, which argparse tells the user.
    """
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is less than 0")
    return number


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "bench": {
        "choices": DEVICE_CHOICES,
        "default": "auto",
        "help": "device that student code runs on; "
        "auto: the real GPU if there is one, else the virtual GPU",
    },
    "hints": {
        "type": _parse_count,
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


POINTS_NOTE: Final = "dojo_points_note"  # the name of a setting in pytest.ini


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options, with long names, to pytest's command line, and our setting."""
    _add_options(parser, "--dojo-")
    parser.addini(POINTS_NOTE, "gpudojo: a line below the points, such as what a course counts")


def short_options(parser: pytest.Parser) -> None:
    """Add `--bench`, `--hints`, `--seed`, `--timeline`, `--traces`.

    A conftest.py imports it as `pytest_addoption`.
    """
    _add_options(parser, "--")
    parser.addoption(
        "--dojo-short-options", action="store_true", default=True, help=argparse.SUPPRESS
    )


def _add_options(parser: pytest.Parser, prefix: str) -> None:
    """Add our options, with names that begin with the prefix, to pytest's command line."""
    group = parser.getgroup("gpudojo", "gpudojo: exercises in GPU programming")
    for name, settings in OPTIONS.items():
        group.addoption(f"{prefix}{name}", dest=f"dojo_{name}", **settings)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect an exercise file or a notebook ourselves; None for any other file.

    The first one registers our other hooks. Raises BadDay where its day cannot be imported, and
    OSError.
    """
    if not is_exercise(file_path, parent.session.isinitpath(file_path)):
        return None
    return _exercise_hooks(parent.config).collect_file(file_path, parent)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Keep pytest from importing an exercise file: it gets a collector without tests.

    Returns None for any other file.
    """
    # pytest would import a file that is named on its command line, and a student's syntax error
    # would stop everything.
    if not is_exercise(module_path):
        return None
    return _exercise_hooks(parent.config).no_module(module_path, parent)


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """Say why nothing was collected: the day of what the command names is not installed.

    Says nothing where something was collected.
    """
    if items:
        return []
    from gpudojo.model.courses import describe_not_installed

    found = []
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        found.append(describe_not_installed(path))
    return [text for text in dict.fromkeys(found) if text]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Note what a worker has collected, if exercises are among it.

    Raises what `add_collected_by_worker` raises: BadDay and pytest.UsageError.
    """
    root = node.config.rootpath
    files = {root / node_id.partition("::")[0] for node_id in ids}
    for file in files:
        if file.suffix == ".ipynb" or is_exercise(file):
            _exercise_hooks(node.config).add_collected_by_worker(ids)
            return


def is_exercise(path: Path, named: bool = False) -> bool:
    """True if a file is an exercise, or a notebook that may hold some.

    `named` is whether it is named on the command line. This imports no day, and nothing at all
    for a file that is not named like an exercise.
    """
    is_notebook = path.suffix == ".ipynb"
    if not is_notebook and path.suffix != ".py":
        return False
    if NUMBERED.fullmatch(path.stem):
        from gpudojo.model.catalogue import day_of_file

        if day_of_file(path) is not None:
            return True
    if not is_notebook:
        return False
    return named or _mentions_day(path)


def _mentions_day(notebook: Path) -> bool:
    """True if a notebook's path or text mentions an installed day."""
    try:
        text = notebook.read_bytes()
    except OSError:
        return False
    mentioned = {*DAY.findall(os.fsencode(notebook)), *DAY.findall(text)}
    if not mentioned:
        return False
    from gpudojo.model.catalogue import day_names

    return any(name.encode() in mentioned for name in day_names())


def _exercise_hooks(config: pytest.Config) -> ExerciseHooks:
    """The plugin that does the work. It is registered when it is first asked for."""
    hooks: ExerciseHooks | None = config.pluginmanager.getplugin(HOOKS)
    if hooks is None:
        from gpudojo.pytest_plugin.hooks import ExerciseHooks

        hooks = ExerciseHooks(config)
        config.pluginmanager.register(hooks, HOOKS)
    return hooks
