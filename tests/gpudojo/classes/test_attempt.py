"""One submission on its way to a record: what is believed, what is tried again, and what a child's end means."""

from __future__ import annotations

import signal

import pytest
from gpudojo.classes.attempt import AGAIN, GRACE, OUTPUT, Attempt, Terms
from gpudojo.classes.store import What, decode, encode
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.sandbox.protocol import Began, Chosen, Fenced, Finished, Frame, Loaded, Saw, Tampered, encode_frame

KNOWN = frozenset({"04_loop::train", "05_eval::evaluate", "06_fast::gray"})
TOKEN = b"t" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempt(clock: Clock | None = None) -> Attempt:
    made = Attempt("digest", {"a.py": b""}, Terms("day8", "virtual", {}, KNOWN, seconds=5.0), clock or Clock())
    made.job(TOKEN)
    return made


def say(one: Attempt, *frames: Frame) -> bool:
    return one.heard(b"".join(encode_frame(frame, TOKEN, n) for n, frame in enumerate(frames, one._frames.count)))


def saw(key: str, status: CallStatus = CallStatus.RETURNED, raised: Raised | None = None) -> Saw:
    exercise, function = key.split("::")
    return Saw(Evidence(exercise, function, "virtual", 0, {"usual": Observation(status, {}, raised)}), 0.1)


def test_what_a_child_says_ends_up_in_the_record() -> None:
    one = attempt()
    said = say(
        one,
        Fenced({"files": ""}),
        Chosen("04_loop", "train", "a.py", 3, None, "the last of two"),
        Began("file a.py"),
        Loaded("a.py", 0.1, {"train": 3}, []),
        Began("04_loop::train"),
        saw("04_loop::train"),
        Finished(),
    )
    assert said
    one.printed(b"hello")
    assert one.exited(0) is False
    record = decode(encode(one.done(1 << 20, 0.5)))
    assert set(record.seen) == {"04_loop::train"}
    assert record.places[0].note == "the last of two"
    assert (record.output, record.peak_bytes, record.incidents) == ("hello", 1 << 20, [])


def test_bytes_may_come_in_any_pieces() -> None:
    one = attempt()
    data = encode_frame(Began("04_loop::train"), TOKEN, 0) + encode_frame(saw("04_loop::train"), TOKEN, 1)
    for i in range(len(data)):
        assert one.heard(data[i : i + 1])
    assert set(one.record.seen) == {"04_loop::train"}


def test_an_endless_function_is_left_out_by_the_next_child() -> None:
    clock = Clock()
    one = attempt(clock)
    say(one, Fenced({}), Began("04_loop::train"), saw("04_loop::train"), Began("05_eval::evaluate"))
    assert not one.overdue(clock.now + 5 + GRACE - 0.1)
    assert one.overdue(clock.now + 5 + GRACE + 0.1)
    one.ended_by_us = True
    assert one.exited(-signal.SIGKILL) is True
    job = one.job(TOKEN)
    assert job.skip == {"04_loop::train", "05_eval::evaluate"}
    assert [(i.what, i.step) for i in one.record.incidents] == [(What.TIMED_OUT, "05_eval::evaluate")]


def test_a_crash_costs_the_function_and_nothing_else() -> None:
    one = attempt()
    say(one, Fenced({}), Began("05_eval::evaluate"))
    assert one.exited(-signal.SIGSEGV) is True
    assert one.record.incidents[0].what is What.CRASHED
    assert "segmentation fault" in one.record.incidents[0].detail
    assert one.job(TOKEN).skip == {"05_eval::evaluate"}


def test_a_polite_exit_is_no_pass() -> None:
    one = attempt()
    say(one, Fenced({}), Began("file a.py"))
    assert one.exited(0) is True
    assert "exit code 0" in one.record.incidents[0].detail
    assert one.job(TOKEN).skip == {"file a.py"}


def test_a_child_somebody_killed_is_tried_again_before_memory_is_blamed() -> None:
    one = attempt()
    for _ in range(AGAIN):
        say(one, Fenced({}), Began("05_eval::evaluate"))
        assert one.exited(-signal.SIGKILL) is True
        assert one.record.incidents == []
        assert "05_eval::evaluate" not in one.job(TOKEN).skip
    say(one, Fenced({}), Began("05_eval::evaluate"))
    assert one.exited(-signal.SIGKILL) is True
    assert one.record.incidents[0].what is What.OUT_OF_MEMORY


def test_time_and_memory_that_python_noticed_are_incidents_too() -> None:
    one = attempt()
    late = saw("04_loop::train", CallStatus.RAISED, Raised("TimedOut", "still running after 5 seconds", 7))
    full = saw("05_eval::evaluate", CallStatus.RAISED, Raised("RuntimeError", "x: can't allocate memory: you tried", 7))
    say(one, Began("04_loop::train"), late, Began("05_eval::evaluate"), full, Finished())
    assert [i.what for i in one.record.incidents] == [What.TIMED_OUT, What.OUT_OF_MEMORY]


@pytest.mark.parametrize(
    "frames",
    [
        [saw("04_loop::train")],  # not the function of this step
        [Began("04_loop::train"), saw("05_eval::evaluate")],
        [Began("04_loop::train"), saw("04_loop::train"), saw("04_loop::train")],
        [Began("99_none::none"), saw("99_none::none")],
        [Tampered("gpudojo.grading.call.Call.__call__()")],
    ],
    ids=["no-step", "another", "twice", "unknown", "tampered"],
)
def test_evidence_out_of_turn_is_not_believed(frames: list[Frame]) -> None:
    one = attempt()
    assert say(one, *frames) is False
    assert one.exited(0) is False
    assert one.record.incidents[-1].what is What.TAMPERED


@pytest.mark.parametrize(
    "data",
    [b"passed\n" * 10, encode_frame(Finished(), b"x" * 16, 2), b"\x05\0\0\0" + TOKEN + b"\xc1\xc1\xc1\xc1\xc1"],
    ids=["text", "wrong-token", "no-msgpack"],
)
def test_noise_on_the_pipe_ends_the_belief(data: bytes) -> None:
    one = attempt()
    say(one, Began("04_loop::train"), saw("04_loop::train"))
    assert one.heard(data) is False
    assert one.heard(encode_frame(Finished(), TOKEN, 2)) is False
    assert one.finished is False


def test_a_submission_that_uses_up_its_time_says_what_was_not_run() -> None:
    clock = Clock()
    one = attempt(clock)
    say(one, Fenced({}), Began("04_loop::train"))
    clock.now += 1000
    one.ended_by_us = True
    assert one.exited(-signal.SIGKILL) is False
    assert [i.what for i in one.record.incidents] == [What.TIMED_OUT, What.NOT_RUN]


def test_output_is_the_students_and_the_same_in_every_run() -> None:
    one = attempt()
    one.printed(b"mine\nFailed to read process name for pid 1\nFailed to read process name for pid 23\n")
    one.printed(b"/tmp/dojo-2a26hz1l/04_train.py:43: UserWarning: slow\nFailed to read it\n")
    assert one.done(0, 0.0).output == "mine\n04_train.py:43: UserWarning: slow\nFailed to read it\n"


def test_output_is_kept_up_to_a_point_and_counted_beyond() -> None:
    one = attempt()
    for _ in range(10):
        one.printed(b"x" * OUTPUT)
    record = one.done(0, 0.0)
    assert len(record.output) < OUTPUT + 100
    assert f"{9 * OUTPUT:,} more bytes" in record.output
