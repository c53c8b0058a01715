"""How does a check say no? With what happened, what was expected, where, and the misconception behind it."""

from __future__ import annotations


class Failed(Exception):
    """Raised by a check whose claim does not hold."""

    def __init__(
        self,
        happened: str,
        expected: str,
        line: int | None = None,
        misconception: str | None = None,
        at: tuple[str, ...] = (),  # where no line is known: signs of it in the source, see probes.signs
    ) -> None:
        super().__init__(happened)
        self.happened = happened
        self.expected = expected
        self.line = line
        self.misconception = misconception
        self.at = at


class Todo(Exception):
    """Raised by a check whose part of the work has not been begun; it may say which part that is."""
