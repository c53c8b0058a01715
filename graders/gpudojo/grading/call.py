"""Calls student functions on a device and describes what they did."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from virtual_cuda.errors import DeviceClosed

from gpudojo.grading.load import raised
from gpudojo.model.evidence import Array, Raised

if TYPE_CHECKING:
    from virtual_cuda import OpenDevice
    from virtual_cuda.ledger import Ledger


class _Late:
    """A module that is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # From the table of modules, where it is by now: the import system takes longer to find that out.
        module = sys.modules.get(self._name) or importlib.import_module(self._name)
        return getattr(module, attribute)


if TYPE_CHECKING:
    import torch as torch
    from torch import nn as nn
else:
    torch, nn = _Late("torch"), _Late("torch.nn")


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

    def __init__(self, function: Any, path: Path, bench: OpenDevice, seed: int) -> None:
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
    from virtual_cuda import Parameter, Tensor

    return frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, Tensor, Parameter})


def array(tensor: Any) -> Array:
    """The values of a tensor as evidence, read by torch's own methods and not by what may be found in their place."""
    base = torch._C.TensorBase
    with torch._C.DisableTorchFunction():
        host = base.contiguous(base.cpu(base.detach(tensor)))
        if host.dtype is torch.bfloat16:
            host = base.float(host)
        return Array(str(host.dtype).removeprefix("torch."), tuple(host.shape), base.numpy(host).tobytes())


def tried(look: Callable[..., dict[str, Any]], call: Call, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What `look` sees, or the error the student's function raised: which check it belongs to, the checks know."""
    try:
        return look(call, *args, **kwargs)
    except StudentRaised as error:
        return {"raised": described(error)}


def described(error: StudentRaised) -> dict[str, Any]:
    """An error of the student's; one about a device that is closed goes on, because a fresh start may mend it.

    So does one about memory, which is a matter of the whole submission: an instructor is told of it.
    """
    evidence = error.evidence
    if evidence.type == DeviceClosed.__name__ or evidence.out_of_memory:
        raise error
    return {"type": evidence.type, "message": evidence.message[:500], "line": evidence.line}


def settled(call: Call, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
    """What the student's function returned, and the names of the settings that are no longer what they were."""
    settings, seed, dice = _settings(), torch.initial_seed(), torch.default_generator.get_state()
    before = [read() for read, _ in settings.values()]
    changed: list[str] = []
    try:
        value = call(*args, **kwargs)
    finally:
        for (name, (read, restore)), setting in zip(settings.items(), before, strict=True):
            if read() != setting:
                changed.append(name)
                restore(setting)
        if torch.initial_seed() != seed:
            changed.append("the seed of the random numbers")
            torch.default_generator.set_state(dice)
    return value, changed


@lru_cache(maxsize=1)
def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How each is read and put back; torch's own ways to ask for some of them take longer than the calls do."""
    c, cuda = torch._C, torch.cuda

    def current_gpu() -> int:
        return cuda.current_device() if cuda.is_initialized() else 0

    return {
        "the default device": (_default_device, torch.set_default_device),
        "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "the gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "the current GPU": (current_gpu, lambda index: cuda.set_device(index)),
        "the precision of matrix products": (c._get_float32_matmul_precision, c._set_float32_matmul_precision),
        "the detection of anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "the use of deterministic algorithms": (c._get_deterministic_algorithms, torch.use_deterministic_algorithms),
        "the search for the fastest convolution": (c._get_cudnn_benchmark, c._set_cudnn_benchmark),
        "the choice of deterministic convolutions": (c._get_cudnn_deterministic, c._set_cudnn_deterministic),
    }


def _default_device() -> Any:
    # Not `torch.get_default_device()`, which makes a tensor to find out: there are devices that hold none.
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


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


def copied(call: Call, **tensors: Any) -> dict[str, int | None]:
    """The line that copied each of these tensors of the CPU, known by its size; none where it was not copied."""
    found: dict[str, int | None] = {}
    for transfer in call.ledger.transfers_to_device():
        for name, tensor in tensors.items():
            if transfer.bytes == tensor.nbytes:
                found.setdefault(name, call.line_of(transfer))
    return found
