"""What do hostile solutions leave behind? Nothing: names they replace in shared modules are put back after each test.

In grading every submission has a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

SHARED = (time, torch, torch.cuda, torch.cuda.Event, torch.Tensor)


@pytest.fixture(autouse=True)
def shared_names_put_back() -> Iterator[None]:
    before = [(shared, dict(vars(shared))) for shared in SHARED]
    yield
    for shared, names in before:
        for name, value in names.items():
            if vars(shared).get(name) is not value:
                setattr(shared, name, value)
