"""What do all of gpudojo's own errors have in common? They carry data, and their text is made last."""

from __future__ import annotations


class DojoError(Exception):
    """Any error that gpudojo raises on purpose."""


class Refusal(DojoError):
    """One that whoever raises it has words for already."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why
