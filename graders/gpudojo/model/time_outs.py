"""What students read about code that took too long: every sentence about a time-out is made here.

Named as a mistake, with hints, it is `does-not-end` in `mistakes.toml`.
"""

from __future__ import annotations

from typing import Final

# What a check expects of a function that was stopped.
EXPECTED_TO_END: Final = (
    "that it ends; look for a loop that does not, or for something that it waits for in vain"
)
USED_UP_CPU_TIME: Final = "it used up its CPU time"


def still_running_after(seconds: float) -> str:
    """Why code was stopped: "still running after 10 seconds"."""
    unit = "seconds"
    if seconds == 1:
        unit = "second"
    return f"still running after {seconds:g} {unit}"


def describe_time_out(
    function: str | None, why: str, scenario: str = "", line_is_shown: bool = False
) -> str:
    """What happened, in a sentence. Without a function it was the file itself that took too long.

    `why` is made by `still_running_after`; a student reads the line beside it if it is shown.
    """
    what = f"`{function}`"
    if function is None:
        what = "the file itself"
    where = ""
    if scenario:
        where = f" (scenario `{scenario}`)"
    line = ""
    if line_is_shown:
        line = "; this is the line it was at"
    return f"time-out: {what} was {why}{where}{line}"
