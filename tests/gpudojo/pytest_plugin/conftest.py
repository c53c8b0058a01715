"""Runs pytest as a student does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from gpudojo.release.student import CONFTEST

from tests.sharing import WarmPython

REPOSITORY = Path(__file__).parents[3]


class Student:
    """A student's folder, and pytest in it."""

    def __init__(self, folder: Path, python: WarmPython) -> None:
        self.folder = folder
        self.python = python

    def write(self, name: str, source: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return path

    def notebook(self, name: str, *cells: str) -> Path:
        content = [
            {"cell_type": "markdown", "metadata": {}, "source": "# My answers"},
            *(
                {
                    "cell_type": "code",
                    "execution_count": None,
                    "metadata": {},
                    "outputs": [],
                    "source": cell,
                }
                for cell in cells
            ),
        ]
        return self.write(
            name, json.dumps({"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})
        )

    def pytest(
        self, *arguments: str, stdin: str = "", columns: int = 120
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"},
            "PYTHONPATH": str(REPOSITORY),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
            "COLUMNS": str(columns),
            "CUDA_VISIBLE_DEVICES": "",
        }
        plugins = ("-p", "pytest_timeout", "-p", "gpudojo.pytest_plugin")
        return self.python.run(
            "pytest", *plugins, *arguments, cwd=self.folder, env=environment, stdin=stdin
        )


@pytest.fixture
def student(tmp_path: Path, warm_python: WarmPython) -> Student:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")  # as in a released repository
    return Student(tmp_path, warm_python)
