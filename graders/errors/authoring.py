"""What can keep a new exercise or day from being begun?"""

from __future__ import annotations

from graders.errors.base import Refusal


class CannotBegin(Refusal):
    """A skeleton of an exercise or a day cannot be made here."""


class BadName(CannotBegin, ValueError):
    """A day, an exercise or a function is to have a name that it cannot have."""

    def __init__(self, what: str, name: str, rule: str) -> None:
        super().__init__(rule)
        self.args = (what, name, rule)
        self.what = what
        self.name = name
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.name!r} cannot be the name of {self.what}: {self.rule}"


class NameTaken(CannotBegin):
    """What is to be made is there already, or something else goes by its name."""

    def __init__(self, name: str, by: str) -> None:
        super().__init__(by)
        self.args = (name, by)
        self.name = name
        self.by = by

    def __str__(self) -> str:
        return f"{self.name} is there already: {self.by}"
