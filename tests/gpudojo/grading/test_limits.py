"""A time limit ends student code, and nothing of the grader's that has to be finished."""

from __future__ import annotations

import contextlib
import io
import re
import signal
import sys
import time
from types import CodeType
from typing import Any

import pytest
from gpudojo.grading.limits import (
    STRETCH,
    TimedOut,
    bounded_output,
    charged_seconds,
    in_scenario,
    time_limit,
)
from gpudojo.model.time_outs import still_running_after

FILE = "/somewhere/student.py"
ALARMS = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs alarms")


def of_a_student(source: str) -> dict[str, Any]:
    """Names of a module that was read from the student's file."""
    code: CodeType = compile(source, FILE, "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    return names


ENDLESS = "def endless():\n    while True:\n        pass\n"
STUBBORN = """
def stubborn():
    for _ in range(3):
        try:
            while True:
                pass
        except BaseException:
            pass
"""


@pytest.mark.parametrize("method", [pytest.param("signal", marks=ALARMS), "thread"])
def test_student_code_ends_when_its_time_is_over(method: str) -> None:
    with (
        pytest.raises(TimedOut, match=re.escape(still_running_after(0.1))),
        time_limit(0.1, FILE, method),
    ):
        of_a_student(ENDLESS)["endless"]()


@pytest.mark.parametrize("method", [pytest.param("signal", marks=ALARMS), "thread"])
def test_who_swallows_it_was_out_of_time_all_the_same(method: str) -> None:
    with time_limit(0.1, FILE, method) as limit:
        of_a_student(STUBBORN)["stubborn"]()
    assert limit.raised >= 3


def test_nobody_is_out_of_time_before() -> None:
    with time_limit(30, FILE) as limit:
        of_a_student("x = sum(range(1000))")
    assert limit.raised == 0


def test_what_is_not_limited_is_never_out_of_time() -> None:
    with time_limit(None, FILE) as limit:
        pass
    assert limit.raised == 0


def spin() -> None:
    while True:
        pass


def spin_and_tidy_up(seconds: float) -> None:
    try:
        spin()
    finally:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass


@ALARMS
def test_ours_is_interrupted_once_when_it_hangs_and_has_time_to_tidy_up() -> None:
    """It came again and again, also while the probe closed its bench, and ended the process."""
    began = time.monotonic()
    with pytest.raises(TimedOut), time_limit(0.2, FILE):
        spin_and_tidy_up(0.5)
    assert time.monotonic() - began > 0.9


@ALARMS
def test_a_destructor_that_never_ends_is_interrupted_again_and_again_but_ours_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    grave = of_a_student(
        "class Grave:\n    def __del__(self):\n        while True:\n            pass\n"
    )["Grave"]

    def bury() -> None:
        for _ in range(20):
            grave()
        spin_and_tidy_up(0.5)

    began = time.monotonic()
    with pytest.raises(TimedOut), time_limit(0.5, FILE) as limit:
        bury()
    assert limit.raised >= 5
    assert limit.line in (2, 3, 4)
    assert time.monotonic() - began > 1.4


@ALARMS
def test_nothing_is_left_of_it() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimedOut), time_limit(0.05, FILE):
        of_a_student(ENDLESS)["endless"]()
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@ALARMS
@pytest.mark.parametrize(("share", "times"), [(0.0, 1), (0.5, 2), (1.0, STRETCH)])
def test_time_in_which_others_had_the_processors_does_not_count(share: float, times: float) -> None:
    """Only up to a point: code that never ends is ended on a busy machine, too."""
    began = time.monotonic()

    def waited() -> float:
        return share * (time.monotonic() - began)

    with (
        pytest.raises(TimedOut, match=re.escape(still_running_after(0.1))),
        time_limit(0.1, FILE, "signal", waited),
    ):
        of_a_student(ENDLESS)["endless"]()
    assert time.monotonic() - began >= 0.1 * times
    assert charged_seconds(0.1 * times, share * 0.1 * times) == pytest.approx(0.1)


def test_the_scenario_stands_above_what_is_printed_in_it() -> None:
    written = io.StringIO()
    # One stream under two names, and a line without an end before the next scenario.
    with (
        contextlib.redirect_stdout(written),
        contextlib.redirect_stderr(written),
        bounded_output(60, named=True),
    ):
        print("loading")
        with in_scenario("first"):
            print("a", 1)
            with in_scenario("inner"):
                print("b", end="", file=sys.stderr)
            print("c")
        with in_scenario("silent"):
            pass
        with in_scenario("last"):
            print("d" * 100)
    shown = [
        "loading",
        "[scenario first]",
        "a 1",
        "[scenario inner]",
        "b",
        "[scenario first]",
        "c",
        "[scenario last]",
    ]
    assert written.getvalue().split("\n")[:8] == shown
    assert "more than 60 characters were printed" in written.getvalue()
