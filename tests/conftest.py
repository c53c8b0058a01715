"""A Python that has torch loaded, for all tests that run a command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sharing import WarmPython


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    made = WarmPython()
    yield made
    made.close()
