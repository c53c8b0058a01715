"""What do solutions leave behind in a process they share? Nothing: names they replace in modules are put back.

In grading every submission has a process of its own. A linter and tests run hundreds in one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Around the loading and running of a solution that may be hostile."""
    import torch

    shared = (time, torch, torch.cuda, torch.cuda.Event, torch.Tensor)
    before = [(owner, dict(vars(owner))) for owner in shared]
    try:
        yield
    finally:
        for owner, names in before:
            for name, value in names.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)
