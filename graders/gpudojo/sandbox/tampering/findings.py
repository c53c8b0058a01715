"""What the watch over student code finds, and how serious it is."""

from __future__ import annotations

import enum
import os
from typing import NamedTuple

LONGEST_TEXT = 300  # characters of a text that is sent
OWN_PACKAGES = ("gpudojo", "virtual_cuda")  # those of days are known when they are registered


class FindingKind(enum.StrEnum):
    """How serious a finding is, the most serious one last."""

    # A name was put back before anything depended on it. The student reads it as a note.
    PUT_BACK = "put back"
    # Somebody should read the line. It costs no points.
    REPORTED = "reported"
    # A name that facts depend on had another value. The function in which it happened earns none.
    UNMEASURED = "could not be measured"
    # The grader's own code was changed. The function in which it happened earns none.
    FORGED = "forged"


class WatchFinding(NamedTuple):
    """Something that student code did, and where."""

    kind: FindingKind
    what: str  # begins with a verb in the past: "replaced torch.Tensor.to"
    file: str  # without its folder; empty where nobody knows
    line: int | None


def make_finding(kind: FindingKind, what: str, file: str, line: int | None) -> WatchFinding:
    """A finding with texts that are short enough to be sent."""
    return WatchFinding(kind, what[:LONGEST_TEXT], os.path.basename(file)[:LONGEST_TEXT], line)
