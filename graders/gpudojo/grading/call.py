"""Calls student functions on a device and describes what they did."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from time import perf_counter
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from virtual_cuda.errors import DeviceClosed

from gpudojo.grading.limits import in_scenario
from gpudojo.grading.load import describe_exception
from gpudojo.grading.source_locator import RAN, take_executed_lines
from gpudojo.model.evidence import Array, Cases, Raised

if TYPE_CHECKING:
    from virtual_cuda import OpenDevice
    from virtual_cuda.ledger import Ledger

    from gpudojo.grading.load import Submission


T = TypeVar("T")


def _lazy(name: str) -> Any:
    """A module that is imported when an attribute of it is first used."""

    class LazyModule:
        __slots__ = ()

        def __getattribute__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # asked by `isinstance`
                return object.__getattribute__(self, attribute)
            module = importlib.import_module(name)
            # From now on Python asks the module itself, without a function of ours in between: probes ask it often.
            LazyModule.__getattribute__ = module.__getattribute__  # type: ignore[assignment,method-assign]
            return getattr(module, attribute)

    return LazyModule()


if TYPE_CHECKING:
    import torch as torch
    from torch import nn as nn
else:
    torch = _lazy("torch")
    nn = _lazy("torch.nn")


DEEPEST: Final = 8  # levels of a result that are searched for tensors


# The lines of the student's file that were executed, by the scenario that `try_scenarios` or `run_scenarios` had begun; "" for none.
executed: Final[dict[str, set[tuple[int, int]]]] = {}
_lines_under: Final = [""]


def after_call() -> Callable[[], None]:
    """What runs after a call; asked for before it. In the sandbox it checks what the student's function has changed."""
    return _nothing


def _nothing() -> None: ...


def in_sandbox() -> bool:
    """Whether this process runs one submission and nothing else: there `after_call` is the sandbox's."""
    return after_call.__module__ != __name__


class StudentRaised(Exception):
    """The student's function raised, as opposed to the probe."""

    def __init__(self, evidence: Raised) -> None:
        super().__init__(evidence.message)
        self.evidence = evidence

    def with_facts(self, **facts: Any) -> StudentRaised:
        """The same error with more said about it: another message, the scenario, what was copied before."""
        return StudentRaised(msgspec.structs.replace(self.evidence, **facts))


class Call:
    """What a probe works with: the student's function, the device, the seed, and the ledger of the last call."""

    def __init__(self, function: Any, submission: Submission, bench: OpenDevice, seed: int) -> None:
        self.function = function
        self.submission = submission
        self.path = submission.path
        self.bench = bench
        self.device = bench.device
        self.seed = seed
        self.reference = (
            submission.reference
        )  # whose evidence also has what students' is compared with
        self.ledger: Ledger = bench.ledger.since(bench.ledger.mark())
        self.aside = 0.0  # seconds that the check after the call took, not the student

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mark = self.bench.ledger.mark()
        modes = _modes()
        afterwards = after_call()  # before the call, which could replace it
        line = None
        RAN.clear()
        kinds = [
            (each, type(each), [*getattr(each, "__dict__", ())])
            for each in args
            if not isinstance(each, _PLAIN)
        ]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "default"
                )  # a warning in student code is no error, even under -W error
                warnings.showwarning = partial(
                    _show_once, warnings.showwarning, _identity(self.submission)
                )
                result = self.function(*args, **kwargs)
                if _modes() != modes:
                    raise RuntimeError(
                        "it left a mode of torch open, which changes torch for all other code"
                    )
                for each, kind, names in kinds:
                    _unchanged(each, kind, names)
                return require_plain_tensors(result)
        except (Exception, SystemExit) as error:
            evidence = describe_exception(error, self.path)
            line = evidence.line
            raise StudentRaised(evidence) from None
        finally:
            began = perf_counter()
            if ran := take_executed_lines(line):
                executed.setdefault(_lines_under[0], set()).update(ran)
            afterwards()
            self.aside = perf_counter() - began
            self.ledger = self.bench.ledger.since(
                mark, self.bench.ledger.mark()
            )  # without what the probe does next

    def line_of(self, record: Any) -> int | None:
        """The line of the student's file that caused a record."""
        site = record.site
        return site.line if site is not None and site.file == str(self.path) else None

    def line_now(self, outermost: bool = False) -> int | None:
        """The line of the student's file that is being run, for what a probe lets student code call."""
        frame: FrameType | None = sys._getframe(1)
        line = None
        while frame is not None and (line is None or outermost):
            if frame.f_code.co_filename == str(self.path):
                line = frame.f_lineno
            frame = frame.f_back
        return line

    def first_line(self, records: Iterable[Any]) -> int | None:
        """The line that caused the first of these records."""
        return next((self.line_of(record) for record in records), None)


_warned: Final[set[tuple[Any, ...]]] = set()


def _show_once(show: Callable[..., None], submission: int, *said: Any, **options: Any) -> None:
    """Show a warning, which has a message, a category, a file and a line, unless an earlier call has shown it."""
    key = submission, *map(str, said[:4])
    if key not in _warned:
        _warned.add(key)
        show(*said, **options)


_identity: Final = object.__hash__  # unlike `id`, it raises no audit event
_PLAIN: Final = (int, float, str, bytes, list, tuple, dict, type(None))


def _unchanged(thing: Any, kind: type, names: list[str]) -> None:
    """Raises RuntimeError where an object that was passed in has got another class or methods of student code."""
    if type(thing) is not kind and any(map(_students, vars(type(thing)).values())):
        raise RuntimeError(f"it changed the class of a {kind.__name__} that it was passed")
    for name in vars(thing).keys() - names if hasattr(thing, "__dict__") else ():
        # Another `forward` does other work, and says nothing wrong about the object.
        if (
            callable(getattr(kind, name, None))
            and name != "forward"
            and _students(vars(thing)[name])
        ):
            raise RuntimeError(f"it replaced `{name}` of a {kind.__name__} that it was passed")


def _students(value: Any) -> bool:
    """Whether this is a function of a file that is no library's."""
    from virtual_cuda import from_library

    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return isinstance(function, FunctionType) and not from_library(function.__code__.co_filename)


def _modes() -> tuple[int, int]:
    """How many modes that change torch's functions are open; a default device is one too, and no matter here."""
    c = torch._C
    functions = [c._get_function_stack_at(place) for place in range(c._len_torch_function_stack())]
    return c._len_torch_dispatch_stack(), sum(
        type(mode) is not torch.utils._device.DeviceContext for mode in functions
    )


def device_name(device: Any) -> str:
    """A device as a tensor there names it: "cuda:0" for "cuda"."""
    found = torch.device(device)
    if found.type == "cpu" or found.index is not None:
        return str(found)
    return f"{found.type}:{torch.cuda.current_device() if found.type == 'cuda' else 0}"


def run_scenarios(scenarios: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each scenario gives, all on one open device: opening one takes longer than most scenarios do.

    Raises the student's first error, which then names its scenario.
    """
    found = {}
    for name, scenario in scenarios.items():
        try:
            with _begun(name):
                found[name] = scenario()
        except StudentRaised as error:
            raise error.with_facts(scenario=name) from None
    return found


def lines_under(name: str) -> None:
    """Record the lines of the calls that follow under this name; "" for calls outside of scenarios."""
    _lines_under[0] = name


@contextlib.contextmanager
def _begun(name: str) -> Iterator[None]:
    """One scenario: what it prints and the lines it executes belong to its name."""
    lines_under(name)
    try:
        with in_scenario(name):
            yield
    finally:
        lines_under("")


def try_scenarios(scenarios: Mapping[str, Callable[[], T]], seed: int | None = None) -> Cases[T]:
    """What each scenario gives, or the error it ended with: which check an error belongs to, the checks decide.

    With a seed they are tried in an order drawn from it, so that no list of answers is right by its order. Raises
    errors about a closed device, because a fresh start may help, and about memory, which concern the whole submission.
    """
    found: Cases[T] = Cases()
    names = list(scenarios)
    for name in names if seed is None else random.Random(seed).sample(names, len(names)):
        try:
            with _begun(name):
                found[name] = scenarios[name]()
        except StudentRaised as error:
            evidence = error.evidence
            if evidence.type == DeviceClosed.__name__ or evidence.out_of_memory:
                raise
            found.errors[name] = msgspec.structs.replace(
                evidence, message=evidence.message[:500], scenario=name
            )
    # In the order given, whatever the seed: checks report the first that is wrong.
    errors = {name: found.errors[name] for name in names if name in found.errors}
    return Cases({name: found[name] for name in names if name in found}, errors)


def require_plain_tensors(result: Any, depth: int = 0) -> Any:
    """The result. Raises TypeError for a tensor in it whose class is the student's own and could deceive probes."""
    if isinstance(result, torch.Tensor):
        if type(result) not in _known_classes():
            raise TypeError(
                f"it returned a {type(result).__name__}, a tensor subclass, instead of a plain tensor"
            )
    elif type(result) in (list, tuple, dict) and depth < DEEPEST:
        for item in result.values() if type(result) is dict else result:
            require_plain_tensors(item, depth + 1)
    return result


@lru_cache(maxsize=1)
def _known_classes() -> frozenset[type]:
    from virtual_cuda import Parameter, Tensor

    return frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, Tensor, Parameter})


def array_of(tensor: Any) -> Array:
    """The values of a tensor as evidence, read by torch's own methods, which student code cannot have replaced."""
    base = torch._C.TensorBase
    with torch._C.DisableTorchFunction():
        host = base.contiguous(
            base.detach(base.cpu(tensor))
        )  # in this order it is one operation on the device
        if host.dtype is torch.bfloat16:
            host = base.float(host)
        return Array(
            str(host.dtype).removeprefix("torch."), tuple(host.shape), base.numpy(host).tobytes()
        )


def call_and_restore_settings(call: Call, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
    """What the student's function returned, and the names of torch's settings that it changed; they are restored."""
    settings = _settings()
    seed = torch.initial_seed()
    state = torch.default_generator.get_state()
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
            torch.default_generator.set_state(state)
    return value, changed


@lru_cache(maxsize=1)
def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How each setting is read and restored. Some of torch's public getters take longer than the call itself."""
    c = torch._C
    cuda = torch.cuda

    def current_gpu() -> int:
        return cuda.current_device() if cuda.is_initialized() else 0

    return {
        "the default device": (_default_device, torch.set_default_device),
        "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "the gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "the current GPU": (current_gpu, lambda index: cuda.set_device(index)),
        "the precision of matrix products": (
            c._get_float32_matmul_precision,
            c._set_float32_matmul_precision,
        ),
        "the detection of anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "the use of deterministic algorithms": (
            c._get_deterministic_algorithms,
            torch.use_deterministic_algorithms,
        ),
        "the search for the fastest convolution": (c._get_cudnn_benchmark, c._set_cudnn_benchmark),
        "the choice of deterministic convolutions": (
            c._get_cudnn_deterministic,
            c._set_cudnn_deterministic,
        ),
    }


def _default_device() -> Any:
    # Not `torch.get_default_device()`, which makes a tensor: a virtual Mac cannot hold one.
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


@contextlib.contextmanager
def restore_shared_modules() -> Iterator[None]:
    """Restores what a hostile solution may have replaced in shared modules."""
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


COPIED_BACK: Final = "to the host"  # the name for what is copied from the device


def lines_of_copies(call: Call, since: int | None = None, **tensors: Any) -> dict[str, int | None]:
    """The line that copied each of these CPU tensors to the device, in the last call or since a mark of the ledger.

    They are recognised by size; only those that were copied. `COPIED_BACK` has the line that last copied more than a number
    to the host.
    """
    ledger = call.ledger if since is None else call.bench.ledger.since(since)
    found: dict[str, int | None] = {}
    for transfer in ledger.transfers_to_device():
        for name, tensor in tensors.items():
            if transfer.bytes == tensor.nbytes:
                found.setdefault(name, call.line_of(transfer))
    if back := [transfer for transfer in ledger.transfers_to_host() if transfer.bytes > 8]:
        found[COPIED_BACK] = call.line_of(back[-1])
    return found
