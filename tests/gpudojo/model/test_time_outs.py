"""The sentences about time-outs, word by word; all other tests make them from data."""

from __future__ import annotations

from gpudojo.model.time_outs import describe_time_out, still_running_after


def test_why_code_was_stopped() -> None:
    assert still_running_after(10) == "still running after 10 seconds"
    assert still_running_after(1.0) == "still running after 1 second"
    assert still_running_after(0.5) == "still running after 0.5 seconds"


def test_what_a_student_reads() -> None:
    why = still_running_after(10)
    assert describe_time_out("f", why) == "time-out: `f` was still running after 10 seconds"
    assert describe_time_out("f", why, "one_gpu", line_is_shown=True) == (
        "time-out: `f` was still running after 10 seconds (scenario `one_gpu`);"
        " this is the line it was at"
    )
    assert describe_time_out(None, why) == (
        "time-out: the file itself was still running after 10 seconds"
    )
