"""The busiest of a function's calls is kept, and nothing else changes."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from gpudojo.grading.call import Call
from gpudojo.grading.load import Submission, load_submission
from gpudojo.grading.observe import observe_probe
from gpudojo.grading.watching import Busiest, EveryCall
from gpudojo.model.evidence import CallStatus
from gpudojo.model.exercise import Function, Probe
from virtual_cuda.ledger.timeline import same_call

SOURCE = """
def move(tensor, device):
    moved = tensor.to(device)
    if len(tensor) > 100:
        raise ValueError("too many")
    return (moved + 1).sum().item()
"""


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    path = tmp_path / "move.py"
    path.write_text(SOURCE, encoding="utf-8")
    return load_submission(path)


def look(call: Call) -> dict[str, Any]:
    found = [call(torch.ones(size), call.device) for size in (2, 64, 8)]
    return {"found": found, "last": call.ledger.bytes_to_device(), "seed": call.seed}


def seen(busiest: Busiest | None, submission: Submission, *probes: Probe) -> Any:
    function = Function("move", probes=list(probes))
    watched = function if busiest is None else busiest.watch_function(function)
    return [
        observe_probe(None, watched, probe, submission, "virtual", 3) for probe in watched.probes
    ]  # type: ignore[arg-type]


def test_of_three_calls_the_one_that_moved_most(submission: Submission) -> None:
    busiest = Busiest()
    watched, unwatched = (seen(one, submission, Probe("usual", look)) for one in (busiest, None))
    assert watched == unwatched
    assert watched[0].facts["last"] == 8 * 4, "a probe still gets the ledger of its last call"
    made = busiest.make_timeline("move")
    assert made is not None
    assert (made.to_device, made.wait_count, made.scenario, made.place) == (64 * 4, 1, "usual", 1)
    assert made.lines == {
        3: "    moved = tensor.to(device)",
        6: "    return (moved + 1).sum().item()",
    }
    assert made.peak_bytes >= 1024
    without = busiest.make_timeline("move", source=False)
    assert without is not None
    assert without.lines == {}


def test_a_reference_shows_the_same_call(submission: Submission) -> None:
    def twice_the_last(call: Call) -> dict[str, Any]:
        return {"found": [call(torch.ones(size), call.device) for size in (2, 4, 64)]}

    yours = Busiest()
    theirs = Busiest(like=yours)
    elsewhere = Busiest(like=yours)
    seen(yours, submission, Probe("usual", look))
    seen(theirs, submission, Probe("other", look), Probe("usual", twice_the_last))
    seen(elsewhere, submission, Probe("other", look))
    made = theirs.make_timeline("move")
    assert made is not None
    assert (yours.place, theirs.place, made.to_device) == (1, 1, 4 * 4)
    assert elsewhere.make_timeline("move") is None


def test_of_a_reference_every_call_is_kept_without_its_lines(submission: Submission) -> None:
    every = EveryCall("move")
    yours = Busiest()
    seen(yours, submission, Probe("usual", look))
    function = every.watch_function(
        Function("move", probes=[Probe("usual", look), Probe("other", look)])
    )
    for probe in function.probes:
        observe_probe(None, function, probe, submission, "virtual", 3)  # type: ignore[arg-type]
    assert [(made.scenario, made.place) for made in every.timelines] == [
        (scenario, place) for scenario in ("usual", "other") for place in range(3)
    ]
    assert all(made.lines == {} and made.events for made in every.timelines)
    mine = yours.make_timeline("move")
    assert mine is not None
    theirs = same_call(mine, every.timelines)
    assert theirs is not None
    assert (theirs.scenario, theirs.place, theirs.events) == ("usual", 1, mine.events)
    assert same_call(mine, every.timelines[:1]) is None


def test_a_call_that_raises_has_been_a_call(submission: Submission) -> None:
    def raising(call: Call) -> dict[str, Any]:
        return {"found": [call(torch.ones(size), call.device) for size in (50, 101)]}

    busiest = Busiest()
    found = seen(busiest, submission, Probe("usual", look), Probe("too many", raising))
    assert [one.status for one in found] == [CallStatus.RETURNED, CallStatus.RAISED]
    assert busiest.scenario == "too many"
    assert busiest.make_timeline("move") is None, (
        "of a call that got no further, there is nothing to draw"
    )


def test_student_code_gets_nothing_between_a_probe_and_its_call(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    busiest = Busiest()
    monkeypatch.setattr(copy, "copy", None)
    probe = Probe("usual", look)
    monkeypatch.setattr(dataclasses, "replace", None)
    watched = busiest.watch_probe(probe)
    found = observe_probe(
        None, Function("move", probes=[watched]), watched, submission, "virtual", 3
    )  # type: ignore[arg-type]
    assert found.status is CallStatus.RETURNED


def test_a_value_is_looked_at_as_it_is() -> None:
    probe = Busiest().watch_probe(Probe("answers", lambda value: {"value": value}, "value"))
    assert (probe.name, probe.machine, probe.look({"a": 1})) == (
        "answers",
        "value",
        {"value": {"a": 1}},
    )
