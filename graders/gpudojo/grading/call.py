"""Calls student functions on a device and describes what they did: what probes work with."""

from __future__ import annotations

import contextlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
from virtual_cuda.errors import DeviceClosed

from gpudojo.grading.debugger import require_debugger_not_left
from gpudojo.grading.executed_lines import RAN, take_executed_lines
from gpudojo.grading.lazy_torch import nn as nn
from gpudojo.grading.lazy_torch import torch as torch
from gpudojo.grading.limits import in_scenario, scenario_running
from gpudojo.grading.load import describe_exception
from gpudojo.grading.sealing import seal_cases
from gpudojo.grading.settings import read_settings, restore_settings
from gpudojo.grading.student_code import call_student
from gpudojo.model.errors import author_line
from gpudojo.model.evidence import Array, Cases, Raised

if TYPE_CHECKING:
    from virtual_cuda import OpenDevice
    from virtual_cuda.ledger import Ledger

    from gpudojo.grading.load import Submission


S = TypeVar("S")
T = TypeVar("T")
DEEPEST: Final = 8  # levels of a result that are searched for tensors
LONGEST_ERROR: Final = 500  # characters of an error's message that are kept for a scenario
COPIED_BACK: Final = "to the host"  # the name for what is copied from the device
# Student code can change neither class nor methods of these.
_PLAIN: Final = (int, float, str, bytes, list, tuple, dict, type(None))

# ---- one call ----------------------------------------------------------------------------------


class StudentRaised(Exception):
    """The student's function raised, as opposed to the probe."""

    def __init__(self, evidence: Raised) -> None:
        super().__init__(evidence.message)
        self.evidence = evidence

    def with_facts(self, **facts: Any) -> StudentRaised:
        """A new error with more fields: another message, the scenario, what was copied before."""
        return StudentRaised(msgspec.structs.replace(self.evidence, **facts))

    def source_of_call(self) -> str:
        """`file:line` of the probe's call, where none of the student's lines ran before the error.

        "" for other errors: then the student's line says more.
        """
        if self.evidence.line is not None:
            return ""
        return author_line(self)


class Call:
    """What a probe works with: the student's function, the device, the seed, and the last ledger.

    `executed` collects the lines of the student's file that all calls executed, by scenario.
    """

    def __init__(self, function: Any, submission: Submission, bench: OpenDevice, seed: int) -> None:
        """Prepare calls of a student's function on an open device; nothing is called yet."""
        self.function = function
        self.submission = submission
        self.path = submission.path
        self.bench = bench
        self.device = bench.device
        self.seed = seed
        # A reference's evidence also has what students' evidence is compared with.
        self.reference = submission.reference
        self.ledger: Ledger = bench.ledger.since(bench.ledger.mark())
        self.executed: dict[str, set[tuple[int, int]]] = {}
        self.lines_under = ""  # the name to record lines under, where it is not the scenario's

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the student's function and return its result.

        Raises StudentRaised where it raises an error or breaks a rule. A result with tensors of the
        student's own class, an open mode of torch and changed classes of arguments are
        such rules. Raises LeftDebugger where the user has left the debugger in it. Afterwards
        `ledger` has the records of this call, and `executed` also the lines that it executed. What
        the student's code put in the place of an argument's methods is removed.
        """
        mark = self.bench.ledger.mark()
        modes = _open_modes()
        arguments = _remember_classes((*args, *kwargs.values()))
        error_line = None
        RAN.clear()
        try:
            with _warnings_shown_once(self.submission):
                result = call_student(self.function, *args, **kwargs)
                if _open_modes() != modes:
                    raise RuntimeError(
                        "it left a mode of torch open, which changes torch for all other code"
                    )
                for argument in arguments:
                    _require_same_class(argument)
                    _put_back_methods(argument)
                return require_plain_tensors(result)
        except (Exception, SystemExit) as error:
            evidence = describe_exception(error, self.path)
            on_cpu = _argument_on_cpu(error)
            if on_cpu:
                evidence = msgspec.structs.replace(evidence, on_cpu=on_cpu)
            error_line = evidence.line
            raise StudentRaised(evidence) from None
        finally:
            self._record_lines(error_line)
            # Up to here: without what the probe does next.
            self.ledger = self.bench.ledger.since(mark, self.bench.ledger.mark())
            require_debugger_not_left()

    def _record_lines(self, error_line: int | None) -> None:
        """Add the lines that were executed since the last time to `executed`, by the scenario's
        name.

        `error_line` is the line of the student's error, or None.
        """
        lines = take_executed_lines(error_line)
        if lines:
            name = self.lines_under or scenario_running()
            self.executed.setdefault(name, set()).update(lines)

    def line_of(self, record: Any) -> int | None:
        """The line of the student's file that caused a record. Returns None for another file."""
        site = record.site
        if site is None or site.file != str(self.path):
            return None
        line: int = site.line
        return line

    def line_now(self, outermost: bool = False) -> int | None:
        """The line of the student's file that is running. Returns None where none is.

        It is for functions that probes give to student code. Of several frames the innermost
        counts, or with `outermost` the outermost.
        """
        frame: FrameType | None = sys._getframe(1)
        line = None
        while frame is not None and (line is None or outermost):
            if frame.f_code.co_filename == str(self.path):
                line = frame.f_lineno
            frame = frame.f_back
        return line

    def first_line(self, records: Iterable[Any]) -> int | None:
        """The line that caused the first of these records. Returns None where there are none.

        Also None where that line is in another file.
        """
        for record in records:
            return self.line_of(record)
        return None


def _argument_on_cpu(error: BaseException) -> str:
    """Which argument of a loss of torch was on the CPU when it raised: "input" or "target".

    Returns "" where the other one was there, too, and for errors that no loss raised.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__") == "torch.nn.functional":
            on_cpu = []
            for name in ("input", "target"):
                value = frame.f_locals.get(name)
                if isinstance(value, torch.Tensor) and type(value) in _plain_tensor_classes():
                    on_cpu.append((name, value.is_cpu))
            if len(on_cpu) == 2 and on_cpu[0][1] is not on_cpu[1][1]:
                return on_cpu[0][0] if on_cpu[0][1] else on_cpu[1][0]
        trace = trace.tb_next
    return ""


@contextlib.contextmanager
def _warnings_shown_once(submission: Submission) -> Iterator[None]:
    """Around student code: a warning is no error, even under `-W error`, and is shown once.

    What was shown is remembered in `submission.warned`. The filters and `warnings.showwarning` are
    put back at the end.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        show = warnings.showwarning

        def show_once(
            message: Any, category: Any, filename: str, lineno: int, *more: Any, **options: Any
        ) -> None:
            """Show a warning unless it was shown before, and remember it."""
            key = str(message), str(category), filename, lineno
            if key not in submission.warned:
                submission.warned.add(key)
                show(message, category, filename, lineno, *more, **options)

        warnings.showwarning = show_once
        yield


# ---- what student code may not do to torch and to arguments ------------------------------------


def _open_modes() -> tuple[int, int]:
    """How many of torch's dispatch modes and of its function modes are open, in this order.

    A default device is a function mode too, and is not counted: settings are compared elsewhere.
    """
    c = torch._C
    count = 0
    for index in range(c._len_torch_function_stack()):
        mode = c._get_function_stack_at(index)
        if type(mode) is not torch.utils._device.DeviceContext:
            count += 1
    return c._len_torch_dispatch_stack(), count


class _Argument(NamedTuple):
    """An object that is passed to student code, as it was before."""

    value: Any
    kind: type
    attributes: frozenset[str]  # of the object itself, not of its class


def _remember_classes(values: Iterable[Any]) -> list[_Argument]:
    """The class and the attributes of each value, for `_require_same_class` and
    `_put_back_methods`.

    Numbers, texts and plain containers are left out: their class cannot be changed.
    """
    found = []
    for value in values:
        if not isinstance(value, _PLAIN):
            attributes = frozenset(getattr(value, "__dict__", ()))
            found.append(_Argument(value, type(value), attributes))
    return found


def _require_same_class(argument: _Argument) -> None:
    """Raises RuntimeError where an argument has got another class, with methods of student code."""
    value, kind, _ = argument
    if type(value) is not kind and any(map(_is_students, vars(type(value)).values())):
        raise RuntimeError(f"it changed the class of a {kind.__name__} that it was passed")


def _put_back_methods(argument: _Argument) -> None:
    """Remove functions that student code has put in the place of an argument's methods.

    A wrapper that prints or counts is no mistake; but probes are to ask the object itself.
    """
    value, kind, attributes = argument
    if not hasattr(value, "__dict__"):
        return
    for name in vars(value).keys() - attributes:
        # Another `forward` does other work, and says nothing wrong about the object.
        if name == "forward" or not callable(getattr(kind, name, None)):
            continue
        if _is_students(vars(value)[name]):
            del vars(value)[name]


def _is_students(value: Any) -> bool:
    """True for a function, method or property of a file that is no library's."""
    from virtual_cuda.hooks import from_library

    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    if not isinstance(function, FunctionType):
        return False
    return not from_library(function.__code__.co_filename)


def require_plain_tensors(result: Any, depth: int = 0) -> Any:
    """Return the result unchanged, if all tensors in it are plain ones.

    Lists, tuples and dicts are searched, `DEEPEST` levels deep; `depth` is the level of this one.
    Raises TypeError for a tensor of any other class: a class of the student's own could deceive
    probes.
    """
    if isinstance(result, torch.Tensor):
        if type(result) not in _plain_tensor_classes():
            name = type(result).__name__
            raise TypeError(f"it returned a {name}, a tensor subclass, instead of a plain tensor")
    elif type(result) in (list, tuple, dict) and depth < DEEPEST:
        if type(result) is dict:
            items = result.values()
        else:
            items = result
        for item in items:
            require_plain_tensors(item, depth + 1)
    return result


@lru_cache(maxsize=1)
def _plain_tensor_classes() -> frozenset[type]:
    """The classes of tensors that student code may return: torch's, and the device's for them."""
    from virtual_cuda.hooks import Parameter, Tensor

    return frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, Tensor, Parameter})


# ---- scenarios ---------------------------------------------------------------------------------


def run_scenarios(scenarios: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each scenario returns, by its name, all on one open device.

    In the sandbox each result is sent out of the process at once; what is returned stands for it.
    To open a device takes longer than most scenarios do. Raises StudentRaised for the student's
    first error, which then names its scenario, and what else a scenario raises.
    """
    found = {}
    for name, scenario in scenarios.items():
        try:
            with in_scenario(name):
                found[name] = seal_cases(scenario())
        except StudentRaised as error:
            raise error.with_facts(scenario=name) from None
    return found


def try_scenarios(
    scenarios: Mapping[str, Callable[[], T]], *, order_seed: int | None = None
) -> Cases[T]:
    """What each scenario returns, or the student's error that it ended with.

    In the sandbox each result is sent out of the process at once; what is returned stands for it.
    Which check an error belongs to, the checks decide. With `order_seed` the scenarios are tried
    in an order drawn from it, so that no list of answers is right by its order. Raises
    StudentRaised for an error about a closed device, because a fresh start may help, and about
    memory, which concerns the whole submission. Every other error of a scenario comes out as it is.
    """
    names = list(scenarios)
    if order_seed is None:
        order = names
    else:
        order = random.Random(order_seed).sample(names, len(names))
    found: dict[str, T] = {}
    errors: dict[str, Raised] = {}
    for name in order:
        try:
            with in_scenario(name):
                found[name] = seal_cases(scenarios[name]())
        except StudentRaised as error:
            evidence = error.evidence
            if evidence.type == DeviceClosed.__name__ or evidence.out_of_memory:
                raise
            errors[name] = msgspec.structs.replace(
                evidence,
                message=evidence.message[:LONGEST_ERROR],
                scenario=name,
                source=error.source_of_call(),
            )
    # In the order given, whatever the seed: checks report the first that is wrong.
    return Cases(
        {name: found[name] for name in names if name in found},
        {name: errors[name] for name in names if name in errors},
    )


def try_inputs(
    describe: Callable[[Call, S], T],
    call: Call,
    inputs: Mapping[str, S],
    *,
    order_seed: int | None = None,
) -> Cases[T]:
    """What `describe` returns for each input, in scenarios with the names of the inputs.

    A student's error in a scenario is kept in its place. With `order_seed` their order is drawn
    from it.
    Raises StudentRaised for an error about a closed device or about memory, as `try_scenarios`
    does.
    """
    scenarios = {name: partial(describe, call, each) for name, each in inputs.items()}
    return try_scenarios(scenarios, order_seed=order_seed)


# ---- for probes to describe calls --------------------------------------------------------------


def device_name(device: Any) -> str:
    """A device as a tensor there names it: "cuda:0" for "cuda".

    A device without an index is the current one of CUDA, else number 0. Raises RuntimeError for a
    text that names no device.
    """
    found = torch.device(device)
    if found.type == "cpu" or found.index is not None:
        return str(found)
    index = 0
    if found.type == "cuda":
        index = torch.cuda.current_device()
    return f"{found.type}:{index}"


def array_of(tensor: Any) -> Array:
    """The values of a tensor as evidence.

    They are read by methods of torch's base class, which student code cannot have replaced.
    bfloat16 is recorded as float32. On the device this is one copy to the host. Raises what torch
    raises for a tensor that NumPy cannot hold.
    """
    base = torch._C.TensorBase
    with torch._C.DisableTorchFunction():
        on_host = base.detach(base.cpu(tensor))  # in this order it is one operation on the device
        values = base.contiguous(on_host)
        if values.dtype is torch.bfloat16:  # which NumPy does not have
            values = base.float(values)
        dtype = str(values.dtype).removeprefix("torch.")
        data = base.numpy(values).tobytes()
        return Array(dtype, tuple(values.shape), data)


def call_and_restore_settings(call: Call, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
    """What the student's function returned, and the names of torch's settings that it changed.

    The settings are put back to what they were, also where the call raises StudentRaised.
    """
    before = read_settings()
    changed: list[str] = []
    try:
        value = call(*args, **kwargs)
    finally:
        changed = restore_settings(before)
    return value, changed


@contextlib.contextmanager
def restore_shared_modules() -> Iterator[None]:
    """At the end of a `with` block, put back what student code replaced in `time` and in torch.

    Names that it added stay. An error of the block comes out after that.
    """
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


def lines_of_copies(call: Call, since: int | None = None, **tensors: Any) -> dict[str, int | None]:
    """The line that copied each of these CPU tensors to the device, by name.

    Looks at the last call, or at everything since a mark of the ledger. Tensors are recognised by
    their size; those that were not copied are left out. `COPIED_BACK` has the line that last
    copied more than a number to the host.
    """
    if since is None:
        ledger = call.ledger
    else:
        ledger = call.bench.ledger.since(since)
    found: dict[str, int | None] = {}
    for transfer in ledger.transfers_to_device():
        for name, tensor in tensors.items():
            if transfer.bytes == tensor.nbytes:
                found.setdefault(name, call.line_of(transfer))
    for transfer in ledger.transfers_to_host():
        if transfer.bytes > 8:
            found[COPIED_BACK] = call.line_of(transfer)
    return found
