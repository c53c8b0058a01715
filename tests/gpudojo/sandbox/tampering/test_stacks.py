"""Student code finds no frame of its caller, and everything that belongs to a thread or a context
is as without.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
import string
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import jinja2
import numpy
import pytest
import torch
from gpudojo.sandbox.tampering.stacks import call_without_callers
from virtual_cuda import virtual_cuda

SECRET = "what only the caller knows"
DEEPEST = 40  # frames above


def raised() -> Exception:
    try:
        raise KeyError
    except KeyError as error:
        return error


def variables_above(frame: Any) -> str:
    """The variables of a frame and of all that are above it."""
    found = []
    while frame is not None:
        found.append(str(frame.f_locals))
        frame = frame.f_back
    return "".join(found)


def try_depths(find: Callable[[int], Any]) -> str:
    """What is found at each number of frames above, up to the last frame there is."""
    found = []
    for depth in range(DEEPEST):
        try:
            found.append(str(find(depth)))
        except (AttributeError, AssertionError, ValueError, jinja2.UndefinedError):
            break
    return "".join(found)


def by_formatter(depth: int) -> Any:
    path = "0.__traceback__.tb_frame" + ".f_back" * depth + ".f_locals"
    return string.Formatter().get_field(path, (raised(),), {})


def by_template(depth: int) -> Any:
    path = "error.__traceback__.tb_frame" + ".f_back" * depth + ".f_locals"
    return jinja2.Template("{{ " + path + " }}").render(error=raised())


def by_torchscript(depth: int) -> Any:
    return torch._jit_internal.createResolutionCallbackFromFrame(depth)("secret")


def by_coroutine() -> str:
    async def look() -> str:
        task = asyncio.current_task()
        assert task is not None
        return "".join(str(frame.f_locals) for frame in task.get_stack())

    return asyncio.run(look())


def by_generator() -> str:
    def generator() -> Any:
        yield variables_above(sys._getframe())

    return str(next(generator()))


WAYS: dict[str, Callable[[], str]] = {
    "asked directly": lambda: variables_above(sys._getframe()),
    "all threads": lambda: variables_above(sys._current_frames()[threading.get_ident()]),
    "inspect": lambda: "".join(str(each.frame.f_locals) for each in inspect.stack()),
    "a traceback": lambda: "".join(
        str(f.f_locals) for f, _ in traceback.walk_stack(sys._getframe())
    ),
    "a formatter": lambda: try_depths(by_formatter),
    "a template": lambda: try_depths(by_template),
    "TorchScript": lambda: try_depths(by_torchscript),
    "a coroutine": by_coroutine,
    "a generator": by_generator,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_to_the_variables_of_the_caller(way: str) -> None:
    secret = SECRET
    assert secret in WAYS[way](), "this way leads to them, where the function is just called"
    assert secret not in call_without_callers(WAYS[way], (), {})


def test_what_it_returns_and_raises_comes_through() -> None:
    assert call_without_callers(divmod, (7, 2), {}) == (3, 1)
    assert call_without_callers(dict, (), {"a": 1}) == {"a": 1}
    for error in (KeyError, SystemExit, KeyboardInterrupt):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        with pytest.raises(error):
            call_without_callers(fail, (), {})


def test_an_alarm_interrupts_it() -> None:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError(frame.f_code.co_name)

    def sleep_long() -> None:
        time.sleep(20)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TimeoutError, match="sleep_long"):
            call_without_callers(sleep_long, (), {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_settings_of_the_thread_are_the_same_inside_and_stay_set() -> None:
    def change() -> tuple[bool, bool, int]:
        seen = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), threading.get_ident()
        torch.set_grad_enabled(True)
        return seen

    with torch.no_grad(), torch.autocast("cpu"):
        assert call_without_callers(change, (), {}) == (False, True, threading.get_ident())
        assert torch.is_grad_enabled()


def test_context_variables_are_the_same_inside_and_stay_set() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("outside")

    def change() -> str:
        seen = variable.get()
        variable.set("inside")
        numpy.seterr(divide="ignore")
        return seen

    with numpy.errstate(divide="warn"):
        assert call_without_callers(change, (), {}) == "outside"
        assert variable.get() == "inside"
        assert numpy.geterr()["divide"] == "ignore"


def test_a_tracer_counts_its_lines() -> None:
    lines = []

    def trace(frame: Any, event: str, value: Any) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
        return trace

    def two_lines() -> int:
        one = 1
        return one

    sys.settrace(trace)
    try:
        call_without_callers(two_lines, (), {})
    finally:
        sys.settrace(None)
    first = two_lines.__code__.co_firstlineno
    assert [line - first for line in lines if first <= line <= first + 2] == [1, 2]


def test_a_model_itself_can_be_called() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    with virtual_cuda() as gpu:
        call_without_callers(model.to("cuda"), (torch.ones(1, 2, device="cuda"),), {})
        assert [each.module for each in gpu.ledger.forwards(top_level_only=False)] == [
            "Sequential",
            "Linear",
        ]
