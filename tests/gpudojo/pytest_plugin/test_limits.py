"""Ctrl-C of the user and KeyboardInterrupt of the student's own code."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from gpudojo.grading.limits import notice_interrupts


@pytest.fixture(
    params=[signal.default_int_handler, signal.SIG_IGN], ids=["in a terminal", "in the background"]
)
def handler(request: pytest.FixtureRequest) -> Any:
    before = signal.signal(signal.SIGINT, request.param)
    yield request.param
    signal.signal(signal.SIGINT, before)


def test_keyboard_interrupt_without_a_signal_is_the_students(handler: Any) -> None:
    with notice_interrupts() as found:
        assert not found.is_users_wish(KeyboardInterrupt())
    assert signal.getsignal(signal.SIGINT) == handler


def test_keyboard_interrupt_after_a_signal_is_the_users(handler: Any) -> None:
    if handler is signal.SIG_IGN:
        with notice_interrupts() as found:
            signal.raise_signal(signal.SIGINT)
        assert not found.real
        return
    with notice_interrupts() as found, pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(signal.SIGINT)
    assert found.is_users_wish(caught.value)
