"""Shows tools for debugging student code alone, and nothing of the grader.

A tracer, a profiler and the list of living objects lead everywhere in a process. The functions here
take the place of Python's own: they show what student code could reach without them.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any, Final

import torch
from virtual_cuda.hooks import from_library

from gpudojo.grading import thread_tracing
from gpudojo.sandbox.tampering.findings import OWN_PACKAGES

# Functions of `sys` that set a tracer or profiler, and that tell which one is set.
SETTING: Final = ("settrace", "setprofile", "_settraceallthreads", "_setprofileallthreads")
ASKING: Final = ("gettrace", "getprofile")
# Objects that lead to what runs now, whoever's it is.
RUNNING: Final = (
    types.FrameType,
    types.TracebackType,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
)


def show_students_code_alone(own_folders: tuple[str, ...]) -> None:
    """Replace functions of `sys` and `gc` by such that show nothing of the grader.

    That is for as long as this process and its forks live. `own_folders` are those of the grader,
    each with a separator at its end.
    """
    for name in SETTING:
        if hasattr(sys, name):  # those for all threads are new in Python 3.12
            setattr(sys, name, _setter_that_hides(getattr(sys, name), own_folders))
    for name in ASKING:
        setattr(sys, name, _getter_that_hides(getattr(sys, name)))
    gc.get_objects = objects_of_student_code


# Tracers and profilers


class StudentsTracer:
    """A student's tracer or profiler, which is not called for frames of the grader."""

    __slots__ = ("function", "own_folders")

    def __init__(self, function: Any, own_folders: tuple[str, ...]) -> None:
        self.function = function
        self.own_folders = own_folders

    def __call__(self, frame: types.FrameType, event: str, value: Any) -> Any:
        """Call the tracer, unless the grader's code is running or has called what runs.

        Returns the tracer for the rest of the frame, or None for no tracing in it. Raises what the
        student's tracer raises.
        """
        if has_graders_frame(frame, self.own_folders):
            return None
        local = self.function(frame, event, value)
        return None if local is None else StudentsTracer(local, self.own_folders)


def has_graders_frame(
    frame: types.FrameType, own_folders: tuple[str, ...], allowed: str = ""
) -> bool:
    """True if this frame, or one above it, leads to the grader's variables.

    The functions that start a student's threads have none, nor have those in the file `allowed`.
    """
    above: types.FrameType | None = frame
    while above is not None:
        file = above.f_code.co_filename
        if file.startswith(own_folders) and file not in (thread_tracing.__file__, allowed):
            return True
        above = above.f_back
    return False


def _setter_that_hides(
    set_tracer: Callable[[Any], None], own_folders: tuple[str, ...]
) -> Callable[[Any], None]:
    """Make a function that sets a student's tracer or profiler; one of the grader's as it is.

    `set_tracer` sets it in the end; `own_folders` are those of the grader.
    """

    def set_students_tracer(function: Any, /) -> None:
        """Set a tracer; a student's is not called for frames of the grader."""
        method = getattr(function, "__func__", function)
        code = getattr(method, "__code__", None)
        is_students = code is None or not code.co_filename.startswith(own_folders)
        if function is not None and is_students:
            function = StudentsTracer(function, own_folders)
            # Lines that it executes itself are not traced, a profiler's neither.
            thread_tracing.note_tracer()
        set_tracer(function)

    return set_students_tracer


def _getter_that_hides(get_tracer: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function that returns the tracer or profiler that somebody has set.

    Of a student's it returns the student's own function, not what is wrapped around it.
    """

    def get_students_tracer() -> Any:
        tracer = get_tracer()
        return tracer.function if type(tracer) is StudentsTracer else tracer

    return get_students_tracer


# Living objects


def objects_of_student_code(generation: int | None = None) -> list[Any]:
    """The objects that the variables of student code lead to, of every generation.

    It takes the place of `gc.get_objects`; the generation that is asked for is ignored. Left out
    are the insides of tensors, objects of ours, what runs, and the code of libraries.
    """
    waiting: list[Any] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if not from_library(frame.f_code.co_filename):
            waiting += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    found: dict[int, Any] = {}
    while waiting:
        each = waiting.pop()
        if id(each) in found or _is_left_out(each):
            continue
        found[id(each)] = each
        if not issubclass(type(each), torch.Tensor):
            waiting += gc.get_referents(each)
    return [each for each in found.values() if gc.is_tracked(each)]


def _is_left_out(value: Any) -> bool:
    """True for objects that student code is not shown, and that lead to nothing it is shown."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return False
    if issubclass(kind, type):
        return _is_librarys_module(value.__module__)
    if kind is types.FunctionType:
        return from_library(value.__code__.co_filename)
    if kind is types.ModuleType:
        return _is_librarys_module(value.__name__)
    return kind in RUNNING or kind.__module__.partition(".")[0] in OWN_PACKAGES


def _is_librarys_module(name: str) -> bool:
    """True for a loaded module, unless its file is a student's."""
    module = sys.modules.get(name)
    if module is None:  # of a file beside the student's, which are forgotten when it has run
        return False
    return from_library(getattr(module, "__file__", None) or "<frozen>")
