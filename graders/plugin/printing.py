"""Where does a student read what the code printed? At the first failing check of the function; of a flood, the ends.

All probes of a function run in the first of its checks, so that pytest would show their output there or, when that one
passes, nowhere.
"""

from __future__ import annotations

from typing import Any, Final

from graders.plugin.collection import FunctionChecks

HEAD: Final = 40
TAIL: Final = 10
LONGEST: Final = 400


def arrange(report: Any, checks: FunctionChecks) -> None:
    """Put what the function printed into the report of a failed check, shortened."""
    checks.printed += [(title, content) for title, content in report.sections if title.startswith("Captured")]
    report.sections = [each for each in report.sections if not each[0].startswith("Captured")]
    if report.failed and checks.printed:
        report.sections += [(title, shortened(content)) for title, content in checks.printed]
        checks.printed = []


def shortened(text: str) -> str:
    lines = [line if len(line) <= LONGEST else f"{line[:LONGEST]} …" for line in text.splitlines()]
    if len(lines) > HEAD + TAIL:
        left_out = len(lines) - HEAD - TAIL
        lines[HEAD:-TAIL] = [f"… {left_out:,} lines left out here; pytest -s shows all of them …"]
    return "\n".join(lines) + "\n"
