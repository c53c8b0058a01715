"""What a call did leaves the process before the next call, and cannot be changed any more."""

from __future__ import annotations

import os
import signal
from typing import Any

import msgspec
import pytest
from gpudojo.grading import sealing
from gpudojo.grading.call import try_scenarios
from gpudojo.grading.sealing import LeavingFacts, seal
from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import Array, CallStatus, Case, Evidence, Observation, plain_facts
from gpudojo.sandbox.evidence_pipe import make_sender
from gpudojo.sandbox.protocol import Began, Fact, Finished, Frames, Saw, encode_frame

KEY = b"k" * 16


class Answer(Case, frozen=True):
    """What a scenario of these tests saw."""

    number: int


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[LeavingFacts]:
    """What has left the process."""
    found: list[LeavingFacts] = []
    monkeypatch.setattr(sealing._state, "send", found.append)
    return found


def saw(facts: dict[str, Any], status: CallStatus = CallStatus.RETURNED) -> Saw:
    observation = Observation(status, plain_facts(facts))
    return Saw(Evidence("e", "f", "virtual", 0, {"p": observation}), 0.0)


def received(sent: list[LeavingFacts], *more: Any) -> tuple[list[Any], str | None]:
    """What the grader has after these facts and frames of the probe `p`, and its problem."""
    frames: list[Any] = [Began("e::f")]
    frames += [Fact(each.number, "p", each.run, each.facts) for each in sent]
    frames += more
    reader = Frames(KEY, 1 << 20)
    data = [encode_frame(frame, KEY, number) for number, frame in enumerate(frames)]
    return reader.feed(b"".join(data)), reader.problem


def facts_of(frames: list[Any]) -> Any:
    return frames[1].evidence.observations["p"].facts


def test_facts_of_a_scenario_leave_before_the_next_one(sent: list[LeavingFacts]) -> None:
    left = []

    def scenario(number: int) -> Answer:
        left.append(len(sent))
        return Answer(number)

    found = try_scenarios({"one": lambda: scenario(1), "two": lambda: scenario(2)})
    assert left == [0, 1]
    frames, problem = received(sent, saw({"found": found}))
    assert problem is None
    assert facts_of(frames) == {"found": {"one": {"number": 1}, "two": {"number": 2}}}


def test_arrays_and_lists_of_facts_come_to_their_places(sent: list[LeavingFacts]) -> None:
    array = Array("uint8", (2,), b"ab")
    frames, problem = received(sent, saw({"all": [seal(array), seal(7), 8], "none": seal(None)}))
    assert problem is None
    assert facts_of(frames) == {"all": [array, 7, 8], "none": None}


def test_in_a_students_own_run_facts_stay_as_they_are() -> None:
    answer = Answer(1)
    assert seal(answer) is answer


@pytest.mark.parametrize(
    "change",
    [
        lambda one, two: {"one": plain_facts(Answer(9)), "two": two},
        lambda one, two: {"one": two, "two": two},
        lambda one, two: {"one": one},
        lambda one, two: {"one": one, "two": two, "three": msgspec.msgpack.Ext(7, b"\xff" * 4)},
    ],
    ids=["replaced", "used_twice", "left_out", "never_sent"],
)
def test_evidence_that_was_changed_afterwards_is_refused(
    sent: list[LeavingFacts], change: Any
) -> None:
    facts = change(seal(Answer(1)), seal(Answer(2)))
    _, problem = received(sent, saw(facts))
    assert problem is not None


def test_of_a_probe_that_begins_again_the_last_facts_count(sent: list[LeavingFacts]) -> None:
    sealing.begin_run()
    seal(Answer(1))
    sealing.begin_run()
    frames, problem = received(sent, saw({"one": seal(Answer(2))}))
    assert problem is None
    assert facts_of(frames) == {"one": {"number": 2}}


def test_a_probe_that_raised_needs_none(sent: list[LeavingFacts]) -> None:
    seal(Answer(1))
    _, problem = received(sent, saw({}, CallStatus.RAISED), Finished())
    assert problem is None


def test_facts_that_are_sent_twice_are_refused(sent: list[LeavingFacts]) -> None:
    facts = {"one": seal(Answer(1))}
    _, problem = received([*sent, *sent], saw(facts))
    assert problem == str(BadEvidence("facts were sent twice"))


def test_what_is_no_plain_data_stays(sent: list[LeavingFacts]) -> None:
    value = object()
    assert seal(value) is value
    assert sent == []


def test_a_time_limit_does_not_leave_half_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm that goes off while a frame is written interrupts when the frame is whole."""
    reading, writing = os.pipe()
    write = os.write

    def write_when_alarmed(end: int, data: bytes) -> int:
        signal.raise_signal(signal.SIGALRM)
        return write(end, data)

    def interrupt(number: int, frame: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(os, "write", write_when_alarmed)
    send = make_sender(writing, KEY, lambda: None)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(3):
            with pytest.raises(InterruptedError):
                send(Began("e::f"))
    finally:
        signal.signal(signal.SIGALRM, before)
    os.close(writing)
    reader = Frames(KEY, 1 << 20)
    with os.fdopen(reading, "rb") as pipe:
        reader.feed(pipe.read())
    assert (reader.problem, reader.count) == (None, 3)
