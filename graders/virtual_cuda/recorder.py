"""Records forward and backward passes, optimizer steps and calls of a gradient scaler.

Operators are recorded elsewhere. What is recorded are rows of the ledger, each with the student's
line. A line is found as an instruction: a code object, and an offset in it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from sys import _getframe
from time import perf_counter
from types import CodeType
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from virtual_cuda.identity import identity
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import (
    GRAD,
    INFERENCE,
    BackwardRow,
    EndRow,
    ForwardRow,
    Row,
    ScalerRow,
    StepRow,
)
from virtual_cuda.libraries import from_library
from virtual_cuda.patching import Patch, around


def from_nowhere() -> None:
    """Stands for a function that is never called."""


# The function of torch that runs every backward pass; without it, their operators have no line.
_run_engine: Final = find_internal(
    "torch.autograd.graph._engine_run_backward", otherwise=from_nowhere
)


class _Files(dict[str, bool | None]):
    """For each file, whether it is a student's; None if it was given to `nothing_above`.

    Files are known by name, because a code object takes longer to hash.
    """

    def __missing__(self, filename: str) -> bool:
        """Find out whether a file is a student's, remember and return it."""
        student = self[filename] = not from_library(filename)
        return student


student_file: Final = _Files()


def nothing_above(filename: str) -> None:
    """Stop the search for a student's frame at frames of this file.

    The file calls student code and is not called by it.
    """
    student_file[filename] = None


# Its code object and its offset there; both None where there is no student's line.
Instruction = tuple[CodeType | None, int | None]


class _LineFinder:
    """Finds the instruction that is running in the innermost frame of a student's file.

    It keeps a generator, whose frame leads to the one that resumes it: `sys._getframe`, and
    `f_code` and `id` too, raise audit events, and where these are watched, each takes as long as an
    operation.
    """

    def __init__(self) -> None:
        self.next_instruction = self._start()

    def _start(self) -> Callable[[], Instruction]:
        """A function that returns the instruction, to be called by `site`.

        It goes on with a generator that is started here.
        """
        instructions = _instructions()
        next(instructions)
        return instructions.__next__

    def find_again(self, error: Exception) -> Instruction:
        """The instruction, after this error in `next_instruction`.

        Where the generator has ended, a new one is kept in its place.
        """
        # An exception such as Ctrl-C or a time limit has ended the generator.
        if isinstance(error, StopIteration):
            self.next_instruction = self._start()
            return self.next_instruction()
        # Another thread is asking: this one needs a generator of its own.
        return self._start()()


def _instructions() -> Generator[Instruction, None, None]:
    """Yields the instruction that is running in the innermost frame of a student's file.

    That is the frame nearest to the caller of the function that resumes this generator. (None,
    None) where there is no such frame. The lines of passes under way are known: what calls them is
    not looked at again.
    """
    own: Any = sys._getframe()
    frame: Any = None
    of_passes = identity(own.f_globals), identity(_run_engine.__globals__)
    # The names of libraries' modules, by identity, but for those of passes.
    libraries: dict[int, dict[str, Any]] = {}
    found: Instruction = (None, None)
    try:
        while True:
            # What a student's module and frames hold is not kept.
            names: Any = None
            frame = None
            yield found
            found = (None, None)
            frame = own.f_back.f_back  # from the caller of the function that resumes this generator
            while frame is not None:
                names = frame.f_globals
                place = identity(names)
                # A known library: neither the code nor its file is looked at.
                if place in libraries:
                    frame = frame.f_back
                    continue
                code = frame.f_code
                # A pass under way: its line was found when it began.
                if code is _FORWARD or code is _ENGINE:
                    if code is _FORWARD:
                        lines = _running.passes
                    else:
                        lines = _running.backwards
                    if lines and lines[-1].of_thread:
                        found = (lines[-1].code, lines[-1].offset)
                        break
                # Any other frame: is it a student's?
                file = code.co_filename
                is_students = student_file[file]
                if is_students is False:
                    if names.get("__file__") == file and place not in of_passes:
                        libraries[place] = names
                    frame = frame.f_back
                    continue
                if is_students:
                    found = (code, frame.f_lasti)
                break
    finally:
        # A frame that leads to itself would live on, and keep its callers and their tensors.
        del own, frame


_finder: Final = _LineFinder()


def site() -> Instruction:
    """The instruction that is running in the innermost frame of a student's file.

    It is (None, None) where there is no such frame.
    """
    try:
        return _finder.next_instruction()
    except (ValueError, StopIteration) as error:
        return _finder.find_again(error)


SCALER_CALLS: Final = ("scale", "unscale_", "step", "update")
_STEP: Final = "Optimizer.step#"  # how torch names a step to its profiler


class _PassLine(NamedTuple):
    """The instruction that started a forward or backward pass."""

    code: CodeType | None
    offset: int | None
    of_thread: bool  # it is this thread's, not that of a thread in which another pass runs


class _StepUnderWay(NamedTuple):
    """An optimizer step that has begun."""

    row: int  # the number of its row in the ledger
    optimizer: str


class _PassesOfThread(threading.local):
    """The passes and optimizer steps under way in this thread; the innermost ones come last."""

    def __init__(self) -> None:
        self.passes: list[_PassLine] = []
        self.backwards: list[_PassLine] = []
        self.steps: list[_StepUnderWay] = []


_running: Final = _PassesOfThread()


def is_in_backward() -> bool:
    """True if this thread runs a backward pass."""
    return bool(_running.backwards)


# What is told of calls of modules: the module, and its arguments by position and by name.
CallWatcher = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
_call_watchers: Final[list[CallWatcher]] = []


@contextlib.contextmanager
def watch_outer_calls(watcher: CallWatcher) -> Iterator[None]:
    """Tell `watcher` of each call of a module in the `with` block, before the module runs.

    Only calls that are not inside another are told, and none in a backward pass, which computes
    again what checkpointing has not kept. What the watcher raises is raised in place of the call.
    """
    _call_watchers.append(watcher)
    try:
        yield
    finally:
        _call_watchers.remove(watcher)


def _tell_watchers(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell all watchers of an outermost call; raises what they raise."""
    if _running.backwards:
        return
    for watcher in list(_call_watchers):
        watcher(module, args, kwargs)


class Recorder:
    """Records passes, optimizer steps and scaler calls by patching functions of torch.

    Each span it opens is closed, also by an exception.
    """

    def __init__(
        self, rows: list[Row], reword: Callable[[Exception], Exception | None] | None = None
    ) -> None:
        """Record into these rows; nothing is patched yet.

        `reword` is given an error of a backward pass, and returns a better one or None.
        """
        self.rows = rows
        self.off = False  # whether there is no device, so that a forward pass is not recorded
        # Makes the error to raise instead where C++ has another name for the device than the
        # student; else None.
        self.reword = reword
        # The line that started the backward pass now running: autograd's own threads have no
        # student frame.
        self.backward_site: Instruction = (None, None)

    def here(self) -> Instruction:
        """The student's line; in autograd's own threads, the one that started the backward pass."""
        instruction = site()
        code, _ = instruction
        if code is None:
            return self.backward_site
        return instruction

    def record_into(self, rows: list[Row]) -> None:
        """Record into these rows from now on."""
        self.rows = rows
        self.backward_site = (None, None)
        self.off = False

    def stop(self) -> None:
        """Record no forward passes until `record_into` is called."""
        self.off = True

    @property
    def stepping(self) -> bool:
        """True if this thread is inside an optimizer step."""
        return bool(_running.steps)

    def recorded_call(self, original: Any) -> Any:
        """The function to put in the place of `original`, which is `nn.Module.__call__`.

        It writes a row before the call of a module, and one after it, also after an exception.
        """
        recorder = self
        running = _running
        grad_on = torch.is_grad_enabled
        inference_on = torch.is_inference_mode_enabled

        # It must be called `self`: the profiler, with_stack=True, looks for that name in the frame
        # and crashes without.
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            """Call a module, and record the call with the student's line.

            Returns and raises what the module does. The pass is noted as under way in this thread
            meanwhile.
            """
            if recorder.off:
                return original(self, *args, **kwargs)
            passes = running.passes
            if _call_watchers and not passes:
                _tell_watchers(self, args, kwargs)
            rows = recorder.rows
            frame = _getframe().f_back  # None where a student's function is the model itself
            code: CodeType | None = None
            offset: int | None = None
            of_thread = True
            if frame is not None and student_file[frame.f_code.co_filename]:
                code = frame.f_code
                offset = frame.f_lasti
            else:
                # Called by torch, as layers are by nn.Sequential: the line is that of the pass
                # around it.
                if passes:
                    code, offset, of_thread = passes[-1]
                else:
                    code, offset = site()
                    if code is None:
                        code, offset = recorder.backward_site
                        of_thread = False
            mode = (GRAD if grad_on() else 0) | (INFERENCE if inference_on() else 0)
            # A whole model is looked at once per pass, not again in each of its layers.
            devices = () if passes else devices_of(self, args, kwargs)
            index = len(rows)
            training = getattr(self, "training", False)  # a frozen script has none
            name = type(self).__name__
            rows.append(ForwardRow(perf_counter(), code, offset, name, training, mode, devices))
            passes.append(_PassLine(code, offset, of_thread))
            try:
                return original(self, *args, **kwargs)
            finally:
                passes.pop()
                rows.append(EndRow(perf_counter(), index))

        return call

    def record_backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that runs a backward pass, and record the pass: its start and its end.

        Returns what the function returns. An error in it is raised in other words where `reword`
        knows better ones, else as it is. The pass is noted as under way in this thread meanwhile.
        """
        # Not a `with` block of contextlib: from Python 3.12 on, its generator and an error that is
        # replaced keep each other alive, and the error the tensors of the pass.
        outer = self.backward_site
        code, offset = site()
        if code is not None:
            self.backward_site = (code, offset)
        _running.backwards.append(_PassLine(*self.backward_site, code is not None))
        index = len(self.rows)
        self.rows.append(BackwardRow(perf_counter(), *self.backward_site))
        try:
            return run(*args, **kwargs)
        except Exception as error:  # of any kind: it is raised again, perhaps in other words
            if self.reword is None:
                better = None
            else:
                better = self.reword(error)
            if better is None:
                raise
            try:
                raise better from None
            finally:
                del better  # it would keep this frame, and the frame it
        finally:
            _running.backwards.pop()
            self.backward_site = outer
            self.rows.append(EndRow(perf_counter(), index))

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Record that an optimizer's step begins, and note it as under way in this thread.

        `args` and `kwargs` are those of the step; they are not used.
        """
        name = type(optimizer).__name__
        _running.steps.append(_StepUnderWay(len(self.rows), name))
        self.rows.append(StepRow(perf_counter(), *self.here(), name))

    def close_step(self, name: str) -> None:
        """Record the end of the innermost step, if it is of an optimizer with this name."""
        steps = _running.steps
        if steps and steps[-1].optimizer == name:
            step = steps.pop()
            self.rows.append(EndRow(perf_counter(), step.row))

    def leave_profiled_region(self, original: Any, region: Any, kind: Any, *rest: Any) -> Any:
        """Record the end of an optimizer step, where the profiler's region around it ends.

        A step that raises does not reach its hooks, but it does leave that region. `kind` is the
        class of the error that leaves the region, or None. `original` is
        `record_function.__exit__`; it is called with the rest, and what it gives is returned.
        """
        if kind is not None and region.name.startswith(_STEP):
            optimizer, _, _ = region.name.removeprefix(_STEP).rpartition(".")
            self.close_step(optimizer)
        return original(region, kind, *rest)

    def call_scaler(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Record a call of a gradient scaler's method, and call it.

        Returns and raises what the method, `original`, does.
        """
        self.rows.append(ScalerRow(perf_counter(), *self.here(), name))
        return original(*args, **kwargs)

    def backward_patches(self) -> Iterator[Patch]:
        """The patches that record backward passes.

        The virtual device uses others, which do more: see `torch_api/backward.py`.
        """
        yield around(torch.autograd, "backward", self.record_backward)
        yield around(torch.autograd, "grad", self.record_backward)

    def patches(self) -> Iterator[Patch]:
        """The patches that record forward passes, steps that raise and scaler calls."""
        yield nn.Module, "__call__", self.recorded_call(nn.Module.__call__)
        yield around(
            torch.autograd.profiler.record_function, "__exit__", self.leave_profiled_region
        )
        for name in SCALER_CALLS:
            yield around(torch.amp.GradScaler, name, functools.partial(self.call_scaler, name))

    @contextlib.contextmanager
    def step_hooks(self) -> Iterator[None]:
        """Record the steps of optimizers for the length of a `with` block.

        Hooks of torch for all optimizers do that; they are removed at the end.
        """
        at_end = register_optimizer_step_post_hook(
            lambda optimizer, *_: self.close_step(type(optimizer).__name__)
        )
        at_begin = register_optimizer_step_pre_hook(lambda *args: self.before_step(*args))
        try:
            yield
        finally:
            at_begin.remove()
            at_end.remove()


# What runs where a module is called, and where autograd does.
_ENGINE: Final = _run_engine.__code__
_FORWARD: Final = Recorder([]).recorded_call(nn.Module.__call__).__code__


def autocast_patches(thread: Any, kind: str) -> Iterator[Patch]:
    """The patches that keep the dtype of autocast in `thread.autocast`.

    It is the dtype that operators on a kind of device ("cuda") are cast to, as text; None where
    they are not cast. torch's own answer is "none" inside an operator that has just been cast.
    """

    def enter_region(original: Any, self: Any) -> Any:
        """Enter a region of autocast by `original`, `autocast.__enter__`; gives what that gives.

        The dtype that it casts to is noted in `thread.autocast`, if it is for our kind of device;
        the one of before is kept in the region, `self`.
        """
        region = original(self)
        self.__dict__.setdefault("_dojo_before", []).append(thread.autocast)
        if torch.device(self.device).type == kind:  # it may be "cuda:1"
            is_enabled = getattr(self, "_enabled", True)  # True where this torch does not tell
            thread.autocast = str(self.fast_dtype) if is_enabled else None
        return region

    def leave_region(original: Any, self: Any, *error: Any) -> Any:
        """Leave a region of autocast by `original`, `autocast.__exit__`; gives what that gives.

        `thread.autocast` is again what was noted before the region.
        """
        thread.autocast = self.__dict__["_dojo_before"].pop()
        return original(self, *error)

    yield around(torch.amp.autocast_mode.autocast, "__enter__", enter_region)
    yield around(torch.amp.autocast_mode.autocast, "__exit__", leave_region)


def devices_of(module: Any, args: Any, kwargs: Any) -> tuple[torch.device, ...]:
    """The devices of a module's inputs and of its first parameter, each once.

    Where a later layer is elsewhere, the call itself fails.
    """
    found: dict[torch.device, None] = {}
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found[value.device] = None
        else:
            devices = [tensor.device for tensor in tensors_in(value)]
            found.update(dict.fromkeys(devices))
    parameter = _first_parameter(module)
    if parameter is not None:
        found[parameter.device] = None
    return tuple(found)


def _first_parameter(module: Any) -> Any:
    """The first parameter of a module or of the modules in it; None if there is none."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None:
            parameter = _first_parameter(child)
            if parameter is not None:
                return parameter
    return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, and in the lists, tuples and dicts inside it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
