"""What all tests share: compiled modules, and a Python that has torch loaded."""

from __future__ import annotations

import compileall
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sharing import WarmPython


def pytest_configure(config: pytest.Config) -> None:
    """Compile the packages before any worker starts.

    Hundreds of processes import them, often where Python is told to write no bytecode; and a test that watches the
    folder for changes must not see a `__pycache__` appear.
    """
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "graders", quiet=2)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    made = WarmPython()
    yield made
    made.close()
