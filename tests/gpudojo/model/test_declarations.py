"""What an author declares wrongly is refused where it is declared."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gpudojo.grading.checks import Ran, check_scenarios, copies_at_most, runs, waits_at_most
from gpudojo.model.evidence import Cases
from gpudojo.model.exercise import MACHINES, Exercise, Function, Seen


@pytest.fixture
def function() -> Function:
    return Exercise("01_x", "X", points=2).function("f")


def look(call: Any) -> dict[str, Any]:
    return {}


def ran(call: Any) -> Cases[Ran]:
    return Cases()


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("lapto", "there is no machine 'lapto' for a probe; did you mean laptop?"),
        ("two gpu", "there is no machine 'two gpu' for a probe; did you mean two gpus?"),
        ("toaster", "there is no machine 'toaster' for a probe; there are a gpu, bench, laptop, "),
        (None, "there is no machine None for a probe; there are a gpu, bench, laptop, "),
    ],
)
def test_a_machine_that_there_is_not_is_refused_with_the_names(
    machine: Any, said: str, function: Function
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        function.probe(machine=machine)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_can_be_asked_for(machine: str, function: Function) -> None:
    assert function.probe(machine=machine)(look).machine == machine


def test_two_probes_of_one_name_are_refused_with_the_place_of_the_first(function: Function) -> None:
    first = function.probe(look)
    said = f"the name of the probe `look` is used twice in f, first at {first.place}; give this one"
    with pytest.raises(ValueError, match=f"^{re.escape(said)} its own name$"):
        function.probe(edge=True)(look)


@pytest.mark.parametrize("points", [-0.5, "0.5", float("nan"), float("inf"), None, True])
def test_points_are_numbers_from_0(points: Any, function: Function) -> None:
    with pytest.raises(
        ValueError, match=r"^the check first of f: points=.* must be a number, 0 or"
    ):

        @function.check(points=points)
        def first(seen: Seen, wanted: Seen) -> None:
            """It is first."""

    with pytest.raises(ValueError, match=r"^02_y: points=.* must be a number, 0 or more$"):
        Exercise("02_y", "Y", points=points)


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ("runs", "needs='runs' is one text and must be a tuple; write: needs=('runs',)"),
        (("runs", 1), "1 in needs must be a text"),
        (None, "needs=None must be a tuple of texts"),
    ],
)
def test_needs_are_a_tuple_of_texts(needs: Any, said: str, function: Function) -> None:
    with pytest.raises(ValueError, match=f"^the check first of f: {re.escape(said)}$"):

        @function.check(points=1, needs=needs)
        def first(seen: Seen, wanted: Seen) -> None:
            """It is first."""


def test_pages_and_scenarios_are_tuples_of_texts(function: Function) -> None:
    with pytest.raises(ValueError, match=r"^01_y: reading='optim\.html' is one text and must"):
        Exercise("01_y", "Y", points=1, reading="optim.html")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^runs\(f\): scenarios='one' is one text and must be a"):
        runs(function, scenarios="one")
    with pytest.raises(ValueError, match=r"^check_scenarios\(f\): names='one' is one text and"):
        check_scenarios(function, function.probe(ran), points=1, names="one")


@pytest.mark.parametrize("count", [3.5, -1, "1", True, None])
def test_limits_are_counts(count: Any, function: Function) -> None:
    found = function.probe(ran)
    with pytest.raises(ValueError, match=r"^copies_at_most\(f\): copies=.* must be a whole number"):
        copies_at_most(function, found, points=1, copies=count)
    with pytest.raises(ValueError, match=r"^waits_at_most\(f\): waits=.* must be a whole number"):
        waits_at_most(function, found, points=1, waits=count)


def test_a_list_of_pages_is_kept_as_a_tuple() -> None:
    assert Exercise("01_y", "Y", 1, reading=["optim.html"]).reading == ("optim.html",)  # type: ignore[arg-type]
