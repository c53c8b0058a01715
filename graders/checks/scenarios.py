"""What came of each scenario, where one probe looks at several? And the claim that the function runs in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graders.checks.common import runs
from graders.curriculum.exercise import Function, Seen
from graders.curriculum.verdicts import Failed

Case = dict[str, Any]
Diagnose = Callable[[str, dict[str, Case]], tuple[str | None, int | None]]


def cases(seen: Seen) -> dict[str, Case]:
    """What was seen in each scenario, whichever probe looked."""
    return {name: case for observation in seen.values() for name, case in observation.facts.items()}


def said(raised: Case) -> str:
    """An error in one line."""
    return f"{raised['type']}: {raised['message'].splitlines()[0][:200]}" if raised["message"] else str(raised["type"])


def runs_in_all(
    function: Function, points: float, scenarios: Iterable[str] | None = None, diagnose: Diagnose | None = None
) -> None:
    """Declare the check that all others need: no error in these scenarios, or in any.

    `diagnose` gets the scenario that raised beside all others, and may name a misconception and a better line.
    """
    plain = Function(function.name, ())
    runs(plain)  # a function that is missing, a file that cannot be run, a probe that stumbled
    chosen = None if scenarios is None else tuple(scenarios)

    def judge(seen: Seen, wanted: Seen) -> None:
        plain.checks[0].judge(seen, wanted)
        found, all_of_them = cases(seen), cases(wanted)
        for name in all_of_them:
            if name not in found:  # evidence comes from where student code ran: what is not there was not passed
                raise Failed(f"nothing was seen of scenario `{name}`", "what the function did there")
        for name in all_of_them if chosen is None else chosen:
            raised = found[name].get("raised")
            if raised is None:
                continue
            key, line = (None, None) if diagnose is None else diagnose(name, found)
            raise Failed(f"scenario `{name}` raised: {said(raised)}", "no error", line or raised["line"], key)

    judge.__name__ = "runs"
    judge.__doc__ = plain.checks[0].claim
    function.check(points, needs=())(judge)
