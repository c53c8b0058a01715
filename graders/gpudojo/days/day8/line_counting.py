"""Counts the lines that student code executes."""

from __future__ import annotations

import dis
import os
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any, Final

from gpudojo.grading.call import Call, in_sandbox
from gpudojo.grading.thread_tracing import tracing

# 3.11 has several; `JUMP_BACKWARD_NO_INTERRUPT` belongs to `await` and `yield from`.
JUMPS: Final = frozenset(
    name for name in dis.opmap if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name
)


class ExecutedLines(Counter[int]):
    """How often each line was executed, and the code that they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: set[CodeType] = set()
        self.elsewhere = False  # whether another process of the submission was there

    def in_loops(self) -> set[int]:
        """The lines inside of loops and comprehensions: those between a jump back and its target."""
        found: set[int] = set()
        for code in self.codes:
            every = [*dis.get_instructions(code)]
            jumps = [(each.argval, each.offset) for each in every if each.opname in JUMPS]
            inside = (
                each for each in every if any(first <= each.offset <= last for first, last in jumps)
            )
            found |= {each.positions.lineno or 0 for each in inside if each.positions}
        return found


def _processes() -> tuple[bool, float]:
    """Whether this process has others that run, and what those that have ended have used."""
    if sys.platform != "linux":
        return False, 0.0
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False, used.ru_utime + used.ru_stime + used.ru_minflt
    return True, used.ru_utime + used.ru_stime + used.ru_minflt


def call_counting_lines(call: Call, *args: Any) -> tuple[Any, ExecutedLines]:
    """Call the student's function and count the executed lines; none while a debugger is tracing.

    Lines of files beside the student's, and of text that is executed, count under the number 0. In the sandbox lines
    of all threads count.
    """
    from virtual_cuda.hooks import from_library  # and torch with it

    lines = ExecutedLines()

    def here(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines[frame.f_lineno] += 1
        return here

    def elsewhere(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines[0] += 1
        return elsewhere

    counting: dict[str, Any] = {str(call.path): here}  # by file

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in counting:
            counting[name] = None if from_library(name) else elsewhere
        count = counting[name]
        if count is here:
            lines.codes.add(frame.f_code)
        return None if count is None else count(frame, "line", value)

    def in_thread(frame: FrameType) -> None:
        lines[frame.f_lineno if counting.get(frame.f_code.co_filename) is here else 0] += 1

    if sys.gettrace() is not None:  # a debugger's or coverage's
        return call(*args), lines
    before = _processes()
    sys.settrace(enter)
    tracing.append(in_thread)
    try:
        return call(*args), lines
    finally:
        tracing.remove(in_thread)
        # In the sandbox all processes are the submission's. A notebook or a test runner may have others.
        lines.elsewhere = _processes() != before or (before[0] and in_sandbox())
        if sys.gettrace() is enter:  # a `breakpoint()` in the student's code sets its own
            sys.settrace(None)
