"""Has functions called for the lines that a submission's threads execute."""

from __future__ import annotations

import _thread
import collections
import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Final

from virtual_cuda.hooks import from_library

# Each is called for every line, outside of libraries, that a traced thread executes.
tracing: Final[list[Callable[[types.FrameType], None]]] = []
# The threads in which a tracer was set or removed, one entry for each time. Only the sandbox keeps
# it; what `trace_threads` itself sets is not in it.
changed_tracers: Final[list[int]] = []
_beginning: Final[set[int]] = set()  # threads in which our own tracer is being set


def is_students_code(code: types.CodeType) -> bool:
    """True for code whose lines count as the student's.

    Files of libraries do not count. Text that is executed has the name "<string>" instead of a
    file, and counts; constructors of named tuples are such text too, but do no work: they do not.
    """
    if code.co_filename == "<string>":
        return not _makes_named_tuple(code)
    return not from_library(code.co_filename)


@functools.cache
def _makes_named_tuple(code: types.CodeType) -> bool:
    """True for the constructor that `collections.namedtuple` generates for so many fields."""
    count = code.co_argcount - 1
    fields = [f"field_{number}" for number in range(count)]
    constructor: Any = collections.namedtuple("Sample", fields).__new__
    sample: types.CodeType = constructor.__code__
    if code.co_code != sample.co_code or code.co_names != sample.co_names:
        return False
    return code.co_consts == sample.co_consts


def note_tracer() -> None:
    """Note that a tracer is being set or removed in this thread, unless it is our own."""
    thread = _thread.get_ident()
    if thread not in _beginning:
        changed_tracers.append(thread)


def trace_threads() -> None:
    """Have what is in `tracing` called for the lines of all threads that start from now on.

    Only lines outside of libraries count. Replaces the functions of `_thread` that start threads,
    and `threading`'s copies of them, for as long as the process lives: for the sandbox.
    """
    every = tracing
    trace = sys.settrace

    # What Python calls in a traced thread: for each call, and for each line of ours or a student's.
    def trace_line(frame: types.FrameType, event: str, value: Any) -> Any:
        if event == "line":
            for each in every:
                each(frame)
        return trace_line

    def trace_call(frame: types.FrameType, event: str, value: Any) -> Any:
        if is_students_code(frame.f_code):
            return trace_line
        return None

    own_thread = _thread.get_ident

    def begin() -> None:
        _beginning.add(own_thread())
        trace(trace_call)
        _beginning.discard(own_thread())

    def run(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        begin()
        return function(*args, **kwargs)

    # A function that starts a thread, with tracing begun in the new thread.
    def with_tracing(start: Any) -> Any:
        """A function that starts a thread as `start` does, with tracing begun in the new thread."""

        def start_with_tracing(function: Any, *rest: Any, **options: Any) -> Any:
            if not rest:  # `start_joinable_thread`
                return start(functools.partial(run, function), **options)
            return start(run, (function, *rest[0]), *rest[1:])

        return start_with_tracing

    for name in [name for name in vars(_thread) if name.startswith("start_")]:
        start = getattr(_thread, name)
        for owner, known in ((_thread, name), (threading, f"_{name}")):
            if getattr(owner, known, None) is start:
                setattr(owner, known, with_tracing(start))
