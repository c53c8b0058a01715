"""How is a student's function called? On a bench, with its part of the ledger kept apart, and its exceptions caught."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graders.evidence import Array, Raised
from graders.probes.late import torch
from graders.probes.loading import raised

if TYPE_CHECKING:
    from graders.bench import Bench
    from graders.bench.ledger import Ledger

DEEPEST: Final = 8  # of a structure that is looked through


def after_call() -> None:
    """A sandbox puts something in its place that looks, after every call, at what the student's function has left."""


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
        modes = torch._C._len_torch_dispatch_stack()
        afterwards = after_call  # what it is now: it could be something else afterwards
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # a warning in student code is no error, whatever the test run says
                result = self.function(*args, **kwargs)
                if torch._C._len_torch_dispatch_stack() != modes:
                    raise RuntimeError("it left a TorchDispatchMode open, which changes what torch does for others")
                return of_known_classes(result)
        except (Exception, SystemExit) as error:
            raise StudentRaised(raised(error, self.path)) from None
        finally:
            afterwards()
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


def of_known_classes(result: Any, depth: int = 0) -> Any:
    """The result, unless there is a tensor in it whose class may say or do what it likes when it is looked at."""
    if isinstance(result, torch.Tensor):
        if type(result) not in _known_classes():
            raise TypeError(
                f"it returned a {type(result).__name__}, a tensor of a class of its own, instead of a plain one"
            )
    elif type(result) in (list, tuple, dict) and depth < DEEPEST:
        for item in result.values() if type(result) is dict else result:
            of_known_classes(item, depth + 1)
    return result


@lru_cache(maxsize=1)
def _known_classes() -> frozenset[type]:
    from graders.bench.virtual import tensor

    return frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, tensor.Tensor, tensor.Parameter})


def array(tensor: Any) -> Array:
    """The values of a tensor as evidence, read by torch's own methods and not by what may be found in their place."""
    base = torch._C.TensorBase
    with torch._C.DisableTorchFunction():
        host = base.contiguous(base.cpu(base.detach(tensor)))
        if host.dtype is torch.bfloat16:
            host = base.float(host)
        return Array(str(host.dtype).removeprefix("torch."), tuple(host.shape), base.numpy(host).tobytes())
