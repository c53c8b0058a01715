"""What do hostile solutions leave behind? Nothing: names they replace in modules are put back after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graders.probes.shared_names import put_back


@pytest.fixture(autouse=True)
def shared_names_put_back() -> Iterator[None]:
    with put_back():
        yield
