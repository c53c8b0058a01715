"""The conformance test can fail: the comparison, the pins and the runner, each given something
wrong.
"""

from __future__ import annotations

import copy
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.virtual_cuda.conformance import corpus as corpora
from tests.virtual_cuda.conformance import measure, pins, run
from tests.virtual_cuda.conformance.compare import (
    ASPECTS,
    Difference,
    Tally,
    differences,
    equal,
    folded,
    tallies,
    verdicts,
)
from tests.virtual_cuda.conformance.corpus import Record, Snippet
from tests.virtual_cuda.conformance.describe import describe

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the runner forks")

RETURNED: Record = {
    "outcome": "ok",
    "error_type": None,
    "message": None,
    "result": {
        "kind": "tensor",
        "class": "torch.Tensor",
        "device": "cuda:0",
        "values": [1.0, 2.0],
        "stats": None,
    },
    "syncs": 1,
    "mem_delta": 512,
    "random": False,
    "tol": 1e-4,
}
RAISED: Record = RETURNED | {
    "outcome": "raise",
    "error_type": "RuntimeError",
    "message": "mat1 is on cuda:0",
    "result": None,
}


def with_result(**changes: Any) -> Record:
    return RETURNED | {"result": RETURNED["result"] | changes}


@pytest.mark.parametrize(
    ("golden", "tried", "wrong"),
    [
        (RETURNED, RETURNED, set()),
        (RETURNED, with_result(**{"class": "Virtual"}), set()),
        (RETURNED, with_result(values=[1.00001, 2.0]), set()),
        (RETURNED, with_result(values=[1.01, 2.0]), {"result"}),
        (RETURNED, with_result(values=[1.0]), {"result"}),
        (RETURNED, with_result(device="cpu"), {"result"}),
        (RETURNED, RETURNED | {"syncs": 2}, {"syncs"}),
        (RETURNED, RETURNED | {"mem_delta": 1024}, {"memory"}),
        (RETURNED, RAISED, {"outcome", "result"}),
        (RETURNED | {"random": True}, with_result(values=[9.0]), set()),
        (RAISED, RAISED, set()),
        (RAISED, RAISED | {"message": "mat1 is on cuda:1\nCUDA kernel errors might"}, set()),
        (RAISED, RAISED | {"message": "mat2 is on cpu"}, {"message"}),
        (RAISED, RAISED | {"error_type": "ValueError"}, {"outcome"}),
        (RAISED, RETURNED, {"outcome", "message"}),
    ],
)
def test_each_disagreement_is_seen_in_its_own_aspect(
    golden: Record, tried: Record, wrong: set[str]
) -> None:
    assert {aspect for aspect, agrees in verdicts(golden, tried).items() if not agrees} == wrong


def test_a_perfect_run_agrees_and_a_spoiled_one_does_not() -> None:
    """Over the real corpus: nothing is different from itself, and one spoiled field is one
    difference.
    """
    golden = corpora.load("public").golden
    assert all(tally.agree == tally.of for tally in tallies(golden, golden).values())
    assert set(tallies(golden, golden)) == set(ASPECTS)
    for id_, record in golden.items():
        if record["outcome"] == "ok":
            spoiled = copy.deepcopy(golden)
            spoiled[id_]["syncs"] += 1
            assert [(d.id, d.aspect) for d in differences(golden, spoiled)] == [(id_, "syncs")]
            break


def test_a_snippet_that_was_not_run_counts_as_different() -> None:
    assert {d.aspect for d in differences({"a": RETURNED}, {})} == {
        "outcome",
        "result",
        "syncs",
        "memory",
    }


@pytest.mark.parametrize(
    ("left", "right"), [(True, 1), (1, True), ([1], (1,)), ("nan", None), ({"a": 1}, {"b": 1})]
)
def test_look_alikes_are_not_equal(left: Any, right: Any) -> None:
    assert not equal(left, right, 1e-4)


def test_only_the_first_line_counts_and_no_number_in_it() -> None:
    assert folded("tried 1.50 GiB on GPU 0 \nException raised from") == "tried # GiB on GPU #"
    assert folded(None) == ""


def test_pins_move_in_neither_direction_unnoticed() -> None:
    pinned = {"outcome": Tally(9, 10)}
    assert pins.describe_changes(pinned, {"outcome": Tally(9, 10)}) == []
    assert pins.describe_changes(pinned, {"outcome": Tally(8, 10)}) == [
        "outcome: fell from 9/10 to 8/10"
    ]
    assert pins.describe_changes(pinned, {"outcome": Tally(10, 10)}) == [
        "outcome: rose from 9/10 to 10/10: raise the pin"
    ]
    assert pins.describe_changes({}, pinned) == [
        "outcome: pinned nothing, found 9/10: pin the corpus anew"
    ]


def test_written_pins_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "agreement.json"
    path.write_text(
        '{"torch": "0", "at_least_percent": {"outcome": 99}, "reached": {"other": {"syncs": [1, '
        "2]}}}"
    )
    pins.pin_tallies("public", {"outcome": Tally(9, 10)}, path)
    assert pins.pinned_tallies("public", path) == {"outcome": Tally(9, 10)}
    assert pins.pinned_tallies("other", path) == {"syncs": Tally(1, 2)}
    assert pins.read_agreement(path)["at_least_percent"] == {"outcome": 99}


def test_differences_and_reasons_must_match_both_ways() -> None:
    real = [Difference("a", "syncs", {}, {})]
    assert pins.differences_without_reason(real, {}) == ["a [syncs]"]
    assert pins.differences_without_reason(real, {("a", "syncs"): "why"}) == []
    assert pins.reasons_without_difference(
        real, {("a", "syncs"): "why", ("a", "memory"): "why"}
    ) == ["a [memory]"]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ('reason = " "\naspects = ["syncs"]\nsnippets = ["a"]', "has a reason"),
        ('reason = "why"\nsnippets = ["a"]', "has a reason"),
        ('reason = "why"\naspects = ["speed"]\nsnippets = ["a"]', "no aspect 'speed'"),
        ('reason = "why"\naspects = ["syncs"]\nsnippets = ["a", "a"]', "listed twice"),
    ],
)
def test_a_mistyped_reason_is_refused(tmp_path: Path, entry: str, complaint: str) -> None:
    path = tmp_path / "differences.toml"
    path.write_text(f"[[difference]]\n{entry}\n")
    with pytest.raises(ValueError, match=complaint):
        pins.known_differences(path)


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (1.23456789, {"kind": "float", "value": 1.23457}),
        (float("nan"), {"kind": "float", "value": "nan"}),
        (torch.Size([2]), {"kind": "torch.Size", "value": [2]}),
        ((True, None), {"kind": "tuple", "class": "tuple", "items": [True, None]}),
        ({"lr": 1}, {"kind": "dict", "items": [["lr", 1]]}),
        (torch.float16, {"kind": "torch.dtype", "value": "torch.float16"}),
        ("at 0x7f00aa", "at 0xADDR"),
    ],
)
def test_descriptions_are_the_recorded_ones(value: Any, described: Any) -> None:
    assert describe(value, random=False) == described


def test_large_tensors_are_described_by_statistics() -> None:
    described = describe(torch.arange(100.0), random=False)
    assert described["values"] is None
    assert described["stats"] == {
        "sum": 4950.0,
        "absmax": 99.0,
        "first": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    }


def forked(codes: dict[str, str]) -> dict[str, Record]:
    return run.run_forked(
        [Snippet(id_, code, random=False, tolerance=1e-4) for id_, code in codes.items()],
        nullcontext,
    )


@pytest.mark.slow
@needs_fork
def test_a_snippet_may_leave_a_mess_or_die_and_the_next_one_runs() -> None:
    records = forked(
        {
            "returns": "result = [1, torch.get_default_dtype() == torch.float32]",
            "leaks": (
                "torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False); leaked = "
                "1; result = 1"
            ),
            "clean": (
                "result = [torch.get_default_dtype(), torch.is_grad_enabled(), 'leaked' in "
                "globals()]"
            ),
            "raises": "\nraise ValueError('no')",
            "silent": "pass",
            "exits": "import os\nprint('last words', flush=True)\nos._exit(7)",
            "killed": "import os\nos.kill(os.getpid(), 9)",
            "survives": "result = 2",
        }
    )
    assert records["returns"]["result"]["items"] == [1, True]
    clean = [{"kind": "torch.dtype", "value": "torch.float32"}, True, False]
    assert records["clean"]["result"]["items"] == clean
    assert (records["raises"]["error_type"], records["raises"]["error_line"]) == ("ValueError", 2)
    assert records["silent"]["result"] == {"kind": "missing"}
    assert (records["exits"]["outcome"], records["exits"]["error_type"]) == ("crash", "exit 7")
    assert "last words" in records["exits"]["message"]
    assert records["killed"]["error_type"] == "exit -9"
    assert records["survives"]["result"] == 2


@needs_fork
def test_a_child_that_ignores_its_alarm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "KILL_SECONDS", 1)
    stubborn = "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass"
    record = forked({"stubborn": stubborn})["stubborn"]
    assert (record["outcome"], record["error_type"]) == ("crash", "timeout")


@needs_fork
def test_a_slow_snippet_is_stopped_by_its_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ALARM_SECONDS", 0.1)
    record = forked({"slow": "import time\ntry: time.sleep(60)\nexcept Exception: pass"})["slow"]
    assert (record["outcome"], record["error_type"]) == (
        "raise",
        "tests.virtual_cuda.conformance.measure.SnippetTimeout",
    )
