"""How many lines of a student's file does a call go through? A loop in Python goes through more on a larger input."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

from graders.probes.calling import Call


def stepped(call: Call, *args: Any) -> tuple[Any, Counter[int]]:
    """Call the student's function and count each line of its file; none of them while a debugger is watching."""
    lines: Counter[int] = Counter()
    file = str(call.path)

    def enter(frame: FrameType, event: str, value: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        lines[frame.f_lineno] += 1
        return step

    def step(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines[frame.f_lineno] += 1
        return step

    if sys.gettrace() is not None:  # a debugger's or coverage's: theirs to keep
        return call(*args), lines
    sys.settrace(enter)
    try:
        return call(*args), lines
    finally:
        if sys.gettrace() is enter:  # a `breakpoint()` in the student's code has put its own there
            sys.settrace(None)
