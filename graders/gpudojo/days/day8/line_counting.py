"""Counts the lines that student code executes."""

from __future__ import annotations

import ast
import dis
import os
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from gpudojo.grading.call import Call
from gpudojo.grading.student_code import in_sandbox
from gpudojo.grading.thread_tracing import changed_tracers, is_students_code, tracing

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
        self.has_gap = False  # whether lines were executed that may not have been counted

    def in_loops(self) -> set[int]:
        """The numbers of lines inside of loops and comprehensions.

        They are those between a jump back in the bytecode and its target.
        """
        found: set[int] = set()
        for code in self.codes:
            instructions = list(dis.get_instructions(code))
            jumps_back = [each for each in instructions if each.opname in JUMPS]
            for instruction in instructions:
                if instruction.positions and _is_inside_loop(instruction, jumps_back):
                    found.add(instruction.positions.lineno or 0)
        return found


class Loop(NamedTuple):
    """A loop or comprehension of a source that went round more often, by its lines."""

    head: int
    last: int
    more: int  # how much more often its head was executed


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def loops_that_grew(source: str, few: Counter[int], many: Counter[int]) -> list[Loop]:
    """The outermost loops of a source that went round more often in one call than in another.

    `few` and `many` are how often the lines of each call were executed. Of loops in each other
    only the outer one is given; those in functions that were called more often are left out.
    Raises SyntaxError if the source is no Python.
    """
    found: list[Loop] = []
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        head = _first_line(node)
        more = many[head] - few[head]
        if more > 0 and isinstance(node, _FUNCTIONS):
            continue
        if more > 0 and isinstance(node, (*_LOOPS, *_COMPREHENSIONS)):
            found.append(Loop(head, node.end_lineno or head, more))
            continue
        waiting += ast.iter_child_nodes(node)
    return sorted(found)


def _first_line(node: ast.AST) -> int:
    """The line on which a call of a function, or a round of a loop, is counted; 0 for the rest."""
    match node:
        case ast.FunctionDef(decorator_list=[first, *_]):
            return first.lineno
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return node.generators[0].target.lineno
        case ast.stmt() | ast.Lambda():
            return node.lineno
    return 0


def _is_inside_loop(instruction: dis.Instruction, jumps_back: list[dis.Instruction]) -> bool:
    """True if an instruction is between a jump back and its target."""
    offset = instruction.offset
    return any(jump.argval <= offset <= jump.offset for jump in jumps_back)


class Children(NamedTuple):
    """Other processes that this one has started."""

    running: bool
    used: float  # by those that have ended: a number that grows with each


def _child_processes() -> Children:
    """The processes that this one has started.

    On systems other than Linux it is not known, and the answer is none.
    """
    if sys.platform != "linux":
        return Children(False, 0.0)
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = usage.ru_utime + usage.ru_stime + usage.ru_minflt
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none
        return Children(False, used)
    return Children(True, used)


def call_counting_lines(call: Call, *args: Any) -> tuple[Any, ExecutedLines]:
    """Call the student's function; return its result, and how often lines were executed.

    While a debugger is tracing, none are counted. Lines of files beside the student's, and of text
    that is executed, count under the number 0. In the sandbox lines of all threads count, and
    `has_gap` is set where the call set or removed a tracer. Sets a tracer meanwhile. Raises
    StudentRaised.
    """
    counter = _LineCounter(str(call.path))
    lines = counter.lines
    if sys.gettrace() is not None:  # a debugger's or coverage's
        return call(*args), lines
    before = _child_processes()
    trace = counter.enter_frame
    sys.settrace(trace)
    tracing.append(counter.count_line_of_thread)
    changes_before = len(changed_tracers)
    try:
        return call(*args), lines
    finally:
        is_in_place = sys.gettrace() is trace
        is_changed = not is_in_place or len(changed_tracers) > changes_before
        lines.has_gap = is_changed and in_sandbox()
        tracing.remove(counter.count_line_of_thread)
        # In the sandbox all processes are the submission's. A notebook or a test runner may have
        # others.
        is_from_before = before.running and in_sandbox()
        lines.elsewhere = is_from_before or _child_processes() != before
        if is_in_place:  # a `breakpoint()` in the student's code sets its own
            sys.settrace(None)


class _LineCounter:
    """Trace functions for `sys.settrace`, which count lines of the student's file and of others."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines = ExecutedLines()

    def enter_frame(self, frame: FrameType, event: str, value: Any) -> Any:
        """Count the first line of a function; returns what counts the others, if any do."""
        code = frame.f_code
        if code.co_filename == self.path:
            self.lines.codes.add(code)
            return self._count_own_line(frame, "line", value)
        if not is_students_code(code):
            return None
        return self._count_other_line(frame, "line", value)

    def _count_own_line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            self.lines[frame.f_lineno] += 1
        return self._count_own_line

    def _count_other_line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            self.lines[0] += 1
        return self._count_other_line

    def count_line_of_thread(self, frame: FrameType) -> None:
        """Count a line that another thread has executed."""
        if frame.f_code.co_filename == self.path:
            self.lines[frame.f_lineno] += 1
        else:
            self.lines[0] += 1
