"""How the record of a submission is made: what is accepted, what is run again, and what a child's
end means.
"""

from __future__ import annotations

import signal

import pytest
from gpudojo.classes.records import IncidentKind, decode_record, encode_record
from gpudojo.classes.submission_run import (
    GRACE_SECONDS,
    MOST_EVIDENCE,
    MOST_OUTPUT,
    MOST_REPEATS,
    SubmissionRun,
    describe_exit,
)
from gpudojo.grading.limits import STRETCH
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised
from gpudojo.model.time_outs import still_running_after
from gpudojo.sandbox.protocol import (
    Began,
    Chosen,
    Finished,
    Frame,
    Isolated,
    Loaded,
    RunOptions,
    Saw,
    encode_frame,
)

KNOWN = frozenset({"04_loop::train", "05_eval::evaluate", "06_fast::gray"})
TOKEN = b"t" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def submission_run(clock: Clock | None = None) -> SubmissionRun:
    options = RunOptions(day="day8", bench="virtual", seeds={}, known=KNOWN, seconds=5.0)
    made = SubmissionRun("digest", {"a.py": b""}, options, clock or Clock())
    made.make_job(TOKEN)
    return made


def say(one: SubmissionRun, *frames: Frame) -> bool:
    return one.receive_bytes(
        b"".join(encode_frame(frame, TOKEN, n) for n, frame in enumerate(frames, one._frames.count))
    )


def saw(key: str, status: CallStatus = CallStatus.RETURNED, raised: Raised | None = None) -> Saw:
    exercise, function = key.split("::")
    return Saw(
        Evidence(exercise, function, "virtual", 0, {"usual": Observation(status, {}, raised)}), 0.1
    )


def test_what_a_child_says_ends_up_in_the_record() -> None:
    one = submission_run()
    said = say(
        one,
        Isolated({"files": ""}),
        Chosen("04_loop", "train", "a.py", 3, None, "the last of two"),
        Began("file a.py"),
        Loaded("a.py", 0.1, {"train": 3}, []),
        Began("04_loop::train"),
        saw("04_loop::train"),
        Finished(),
    )
    assert said
    one.add_output(b"hello")
    assert one.note_child_exit(0) is False
    record = decode_record(encode_record(one.finish_record(1 << 20, 0.5)))
    assert set(record.seen) == {"04_loop::train"}
    assert record.places[0].note == "the last of two"
    assert (record.output, record.peak_bytes, record.incidents) == ("hello", 1 << 20, [])


def test_bytes_may_come_in_any_pieces() -> None:
    one = submission_run()
    data = encode_frame(Began("04_loop::train"), TOKEN, 0) + encode_frame(
        saw("04_loop::train"), TOKEN, 1
    )
    for i in range(len(data)):
        assert one.receive_bytes(data[i : i + 1])
    assert set(one.record.seen) == {"04_loop::train"}


def test_the_next_child_skips_an_endless_function() -> None:
    clock = Clock()
    one = submission_run(clock)
    say(
        one,
        Isolated({}),
        Began("04_loop::train"),
        saw("04_loop::train"),
        Began("05_eval::evaluate"),
    )
    assert not one.is_overdue(clock.now + 5 + GRACE_SECONDS - 0.1)
    assert one.is_overdue(clock.now + 5 + GRACE_SECONDS + 0.1)
    one.killed_by_us = True
    assert one.note_child_exit(-signal.SIGKILL) is True
    job = one.make_job(TOKEN)
    assert job.skip == {"04_loop::train", "05_eval::evaluate"}
    assert [(i.what, i.step) for i in one.record.incidents] == [
        (IncidentKind.TIMED_OUT, "05_eval::evaluate")
    ]


def test_a_crash_costs_the_function_and_nothing_else() -> None:
    one = submission_run()
    say(one, Isolated({}), Began("05_eval::evaluate"))
    assert one.note_child_exit(-signal.SIGSEGV) is True
    assert one.record.incidents[0].what is IncidentKind.CRASHED
    assert "segmentation fault" in one.record.incidents[0].detail
    assert one.make_job(TOKEN).skip == {"05_eval::evaluate"}


def test_an_exit_code_of_zero_is_no_pass() -> None:
    one = submission_run()
    say(one, Isolated({}), Began("file a.py"))
    assert one.note_child_exit(0) is True
    assert "exit code 0" in one.record.incidents[0].detail
    assert one.make_job(TOKEN).skip == {"file a.py"}


def test_a_killed_child_is_run_again_before_it_counts_as_out_of_memory() -> None:
    one = submission_run()
    for _ in range(MOST_REPEATS):
        say(one, Isolated({}), Began("05_eval::evaluate"))
        assert one.note_child_exit(-signal.SIGKILL) is True
        assert one.record.incidents == []
        assert "05_eval::evaluate" not in one.make_job(TOKEN).skip
    say(one, Isolated({}), Began("05_eval::evaluate"))
    assert one.note_child_exit(-signal.SIGKILL) is True
    assert one.record.incidents[0].what is IncidentKind.OUT_OF_MEMORY


def test_time_and_memory_that_python_noticed_are_incidents_too() -> None:
    one = submission_run()
    late = saw("04_loop::train", CallStatus.RAISED, Raised("TimedOut", still_running_after(5), 7))
    full = saw(
        "05_eval::evaluate",
        CallStatus.RAISED,
        Raised("RuntimeError", "x: can't allocate memory: you tried", 7),
    )
    say(one, Began("04_loop::train"), late, Began("05_eval::evaluate"), full, Finished())
    assert [i.what for i in one.record.incidents] == [
        IncidentKind.TIMED_OUT,
        IncidentKind.OUT_OF_MEMORY,
    ]


@pytest.mark.parametrize(
    "frames",
    [
        [saw("04_loop::train")],  # not the function of this step
        [Began("04_loop::train"), saw("05_eval::evaluate")],
        [Began("04_loop::train"), saw("04_loop::train"), saw("04_loop::train")],
        [Began("99_none::none"), saw("99_none::none")],
    ],
    ids=["no-step", "another", "twice", "unknown"],
)
def test_evidence_out_of_turn_is_not_accepted(frames: list[Frame]) -> None:
    one = submission_run()
    assert say(one, *frames) is False
    assert one.note_child_exit(0) is False
    assert one.record.incidents[-1].what is IncidentKind.FORGED


@pytest.mark.parametrize(
    "data",
    [
        b"passed\n" * 10,
        encode_frame(Finished(), b"x" * 16, 2),
        b"\x05\0\0\0" + TOKEN + b"\xc1\xc1\xc1\xc1\xc1",
    ],
    ids=["text", "wrong-token", "no-msgpack"],
)
def test_noise_on_the_pipe_is_refused_with_all_that_follows(data: bytes) -> None:
    one = submission_run()
    say(one, Began("04_loop::train"), saw("04_loop::train"))
    assert one.receive_bytes(data) is False
    assert one.receive_bytes(encode_frame(Finished(), TOKEN, 2)) is False
    assert one.finished is False


def test_a_submission_that_uses_up_its_time_says_what_was_not_run() -> None:
    clock = Clock()
    one = submission_run(clock)
    say(one, Isolated({}), Began("04_loop::train"))
    clock.now += 1000
    one.killed_by_us = True
    assert one.note_child_exit(-signal.SIGKILL) is False
    assert [i.what for i in one.record.incidents] == [IncidentKind.TIMED_OUT, IncidentKind.NOT_RUN]


def test_output_is_the_students_and_the_same_in_every_run() -> None:
    one = submission_run()
    one.add_output(
        b"mine\nFailed to read process name for pid 1\nFailed to read process name for pid 23\n"
    )
    one.add_output(b"/tmp/dojo-2a26hz1l/04_train.py:43: UserWarning: slow\nFailed to read it\n")
    assert (
        one.finish_record(0, 0.0).output
        == "mine\n04_train.py:43: UserWarning: slow\nFailed to read it\n"
    )


def test_output_is_kept_up_to_a_point_and_counted_beyond() -> None:
    one = submission_run()
    for _ in range(10):
        one.add_output(b"x" * MOST_OUTPUT)
    record = one.finish_record(0, 0.0)
    assert len(record.output) < MOST_OUTPUT + 100
    assert f"{9 * MOST_OUTPUT:,} more bytes" in record.output


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGSEGV, "its process ended: a segmentation fault"),
        (-signal.SIGABRT, "its process ended: it aborted"),
        (-signal.SIGSYS, "its process ended: it aborted"),
        (-signal.SIGTRAP, "its process ended: it aborted"),
        (-signal.SIGTERM, "its process was ended by SIGTERM"),
        (6, "it ended its own process (exit code 6)"),
    ],
)
def test_the_words_follow_what_the_kernel_reports(code: int, words: str) -> None:
    assert describe_exit(code) == words


@pytest.mark.parametrize(
    "printed",
    [
        "/" * MOST_OUTPUT,
        "/a" * (MOST_OUTPUT // 2),
        "/dojo-" * (MOST_OUTPUT // 6),
        "9" * MOST_OUTPUT,
    ],
)
def test_no_output_takes_longer_to_clean_than_it_is_long(printed: str) -> None:
    """Quadratic, each of these would take minutes in the thread that all submissions wait for."""
    one = submission_run()
    one.add_output(printed.encode())
    assert one.finish_record(0, 0.0).output == printed


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("in /tmp/dojo-abcdefgh/a.py, line 3", "in a.py, line 3"),
        ("/x/dojo-abcdefgh/b/dojo-12345678/c.py", "c.py"),
        ("//dojo-abcdefgh//dojo-abcdefgh/a", "a"),
        ("/dojo-abcdefgh/a.py", "/dojo-abcdefgh/a.py"),
        ("/tmp/dojo-short/a.py", "/tmp/dojo-short/a.py"),
        ("a/tmp/dojo-abcdefgh/a.py!/tmp/dojo-abcdefgh/b", "aa.py!b"),
    ],
)
def test_the_folder_of_a_run_is_left_out_of_its_output(printed: str, kept: str) -> None:
    one = submission_run()
    one.add_output(printed.encode())
    assert one.finish_record(0, 0.0).output == kept


def test_while_the_grader_stands_still_nobodys_time_runs_out() -> None:
    clock = Clock()
    one = submission_run(clock)
    say(one, Isolated({}), Began("04_loop::train"))
    clock.now += 15.0
    assert one.is_overdue(clock.now)
    one.postpone_deadline(15.0)
    assert not one.is_overdue(clock.now)
    clock.now += 5.0 + GRACE_SECONDS
    assert not one.is_overdue(clock.now)
    assert one.is_overdue(clock.now + 0.1)
    assert one.finish_record(0, 0.0).seconds == 5.0 + GRACE_SECONDS


def test_a_submission_does_not_begin_later_than_now() -> None:
    clock = Clock()
    one = submission_run(clock)
    one.postpone_deadline(12.0)  # the grader was stopped before it began
    clock.now += 2.0
    assert one.finish_record(0, 0.0).seconds == 2.0
    clock.now += 12.0
    one.postpone_deadline(12.0)
    one.note_waiting(3.0)  # while the grader was stopped
    assert one.finish_record(0, 0.0).seconds == 0.0


def test_time_in_which_others_had_the_processors_is_not_the_child_s() -> None:
    clock = Clock()
    one = submission_run(clock)
    say(one, Isolated({}), Began("04_loop::train"))
    one.note_waiting(4.0)
    one.note_waiting(6.0)
    clock.now += 5.0 + GRACE_SECONDS + 6.0
    assert not one.is_overdue(clock.now)
    assert one.is_overdue(clock.now + 0.1)
    one.note_waiting(1000.0)
    clock.now += (STRETCH - 1) * 5.0 - 6.0
    assert not one.is_overdue(clock.now)
    assert one.is_overdue(clock.now + 0.1), "but only up to a point"
    say(one, saw("04_loop::train"), Began("05_eval::evaluate"))
    one.note_waiting(1001.0)
    assert not one.is_overdue(clock.now + 5.0 + GRACE_SECONDS + 1.0)
    assert one.is_overdue(clock.now + 5.0 + GRACE_SECONDS + 1.1), (
        "what the first step waited is not given to the second"
    )


def late(key: str) -> Saw:
    return saw(key, CallStatus.RAISED, Raised("TimedOut", still_running_after(5), 3))


@pytest.mark.parametrize("gap", [15.0, 0.0])
def test_who_was_late_while_the_grader_stood_still_is_run_again(gap: float) -> None:
    """A child that prints waits for the grader to read, and its own clock goes on."""
    one = submission_run()
    say(one, Isolated({}), Began("04_loop::train"))
    one.postpone_deadline(gap)
    assert say(one, late("04_loop::train")) == (gap == 0.0)
    if gap:
        assert not say(one, Finished()), "nothing more of that child counts"
        assert one.note_child_exit(-signal.SIGKILL) is True
        assert (one.record.seen, one.record.incidents) == ({}, [])
        one.make_job(TOKEN)
        assert say(one, Isolated({}), Began("04_loop::train"), late("04_loop::train"))
    assert [incident.what for incident in one.record.incidents] == [IncidentKind.TIMED_OUT]


def test_a_file_that_was_late_while_the_grader_stood_still_is_run_again_and_not_for_ever() -> None:
    one = submission_run()
    broken = Loaded("a.py", 5.0, {}, [], Raised("TimedOut", still_running_after(5), 1))
    for again in range(MOST_REPEATS + 1):
        say(one, Isolated({}), Began("file a.py"))
        one.postpone_deadline(20.0)
        assert say(one, broken) == (again == MOST_REPEATS)
        if again < MOST_REPEATS:
            assert one.note_child_exit(-signal.SIGKILL) is True
            one.make_job(TOKEN)
    assert one.record.files["a.py"].broken is not None


def test_more_than_is_recorded_costs_the_function_and_accuses_nobody() -> None:
    one = submission_run()
    say(one, Isolated({}), Began("04_loop::train"))
    assert not one.receive_bytes(bytes(MOST_EVIDENCE + 1))
    assert not one.receive_bytes(b"more")
    assert one.note_child_exit(-signal.SIGKILL) is True, "the other functions are graded"
    (incident,) = one.record.incidents
    assert (incident.what, incident.step) == (IncidentKind.CRASHED, "04_loop::train")
    assert (
        incident.detail
        == "what it did or returned takes more than the 64 MB that are recorded of a submission"
    )
    assert one.make_job(TOKEN).skip == {"04_loop::train"}
