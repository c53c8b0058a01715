"""How is a student's function called? On a bench, with its part of the ledger kept apart, and its exceptions caught."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graders.evidence import Array, Raised
from graders.probes.late import torch
from graders.probes.loading import raised

if TYPE_CHECKING:
    from graders.bench import Bench
    from graders.bench.ledger import Ledger


class StudentRaised(Exception):
    """The student's function raised, as opposed to the probe; a probe that knows more of it adds facts."""

    def __init__(self, evidence: Raised) -> None:
        super().__init__(evidence.message)
        self.evidence = evidence
        self.facts: dict[str, Any] = {}


class Call:
    """What a probe works with: the function, the bench, the seed, and after each call its part of the ledger."""

    def __init__(self, function: Any, path: Path, bench: Bench, seed: int) -> None:
        self.function = function
        self.path = path
        self.bench = bench
        self.device = bench.device
        self.seed = seed
        self.ledger: Ledger = bench.ledger.since(bench.ledger.mark())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mark = self.bench.ledger.mark()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # a warning in student code is no error, whatever the test run says
                return self.function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise StudentRaised(raised(error, self.path)) from None
        finally:
            self.ledger = self.bench.ledger.since(mark, self.bench.ledger.mark())  # not what the probe does next

    def line_of(self, record: Any) -> int | None:
        """The line of the student's file that caused a record."""
        site = record.site
        return site.line if site is not None and site.file == str(self.path) else None


def several(scenarios: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each of some scenarios gives, under one bench: opening one takes longer than most of them do.

    The student's first error ends them, and says in which it came up.
    """
    found = {}
    for name, scenario in scenarios.items():
        try:
            found[name] = scenario()
        except StudentRaised as error:
            error.facts["scenario"] = name
            raise
    return found


def array(tensor: Any) -> Array:
    """The values of a tensor as evidence."""
    host = tensor.detach().cpu().contiguous()
    if host.dtype is torch.bfloat16:
        host = host.float()
    return Array(str(host.dtype).removeprefix("torch."), tuple(host.shape), host.numpy().tobytes())
