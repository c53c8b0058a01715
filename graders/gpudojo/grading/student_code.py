"""Runs code of a submission: the one place where that happens.

A student's own run calls it as any function. The sandbox, which runs code that nobody has read, has
a way of its own (`gpudojo.sandbox.tampering.watch`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class StudentRunner(Protocol):
    """A way to run code of submissions."""

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function. Returns what it returns and raises what it raises."""

    def run_file(self, function: Callable[[], Any]) -> None:
        """Call the function whose code is that of a file. Raises what it raises."""

    def call_recorder(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call a function of ours in the midst of student code.

        Returns what it returns and raises what it raises.
        """


_runner: StudentRunner | None = None


def run_students_code_by(runner: StudentRunner) -> None:
    """Have all code of submissions run by `runner` from now on. For the sandbox, once."""
    global _runner
    _runner = runner


def in_sandbox() -> bool:
    """True if this process runs one submission and nothing else."""
    return _runner is not None


def call_student(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a student's function. Returns what it returns and raises what it raises."""
    if _runner is None:
        return function(*args, **kwargs)
    return _runner.call(function, args, kwargs)


def run_students_file(function: Callable[[], Any]) -> None:
    """Call the function whose code is that of a student's file. Raises what it raises.

    In the sandbox, what the file replaces of torch and Python is put back afterwards and reported,
    and so are names in it that lead to the grader.
    """
    if _runner is None:
        function()
    else:
        _runner.run_file(function)


def call_recorder(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of ours that records something in the midst of student code.

    In the sandbox, names of Python and torch that student code has replaced mean their own things
    meanwhile. Returns what the function returns and raises what it raises.
    """
    if _runner is None:
        return function(*args)
    return _runner.call_recorder(function, args)
