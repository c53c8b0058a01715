"""What `dojo lint` finds, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, in a sentence."""

    exercise: str  # its stem, or what else it is about: a day, a file, "misconceptions"
    text: str
    warning: bool = False  # it does not make `dojo lint` fail
