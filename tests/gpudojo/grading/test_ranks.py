"""Two processes that share a group, and each alone; no result depends on the clock."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpudojo.days.day8.multiple_gpus import ranks as rank_processes
from gpudojo.grading.call import StudentRaised
from gpudojo.grading.load import load_submission

MEAN = """
import torch.distributed as dist
def average_gradients(model):
    {before}
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
"""


def ranks(folder: Path, before: str) -> list[dict[str, Any]]:
    path = folder / "student.py"
    path.write_text(MEAN.format(before=before), encoding="utf-8")
    return rank_processes.run_in_ranks(
        load_submission(path).names["average_gradients"], path, "average_gradients"
    )


def test_together_and_alone(tmp_path: Path) -> None:
    first, second = ranks(tmp_path, "pass")
    scale = first["alone"]["gradients"][0][0]  # by the seed
    assert 0.5 <= scale <= 2.0
    assert first["some"] == second["some"]
    together = first["some"]["gradients"]
    assert together[0] == pytest.approx([2 * scale, 5 * scale])
    assert together[1][:3] == pytest.approx([3 * scale, 6 * scale, 9 * scale])
    assert together[2] is None
    assert first["alone"]["gradients"][0] == pytest.approx([scale, 2 * scale])
    assert second["alone"]["gradients"][0] == pytest.approx([3 * scale, 8 * scale])


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_ranks_are_run_again_where_something_kills_one(tmp_path: Path) -> None:
    once = f"import os, pathlib; mark = pathlib.Path({str(tmp_path / 'mark')!r})"
    kill = "if dist.get_rank() and not mark.exists(): mark.touch(); os.kill(os.getpid(), 9)"
    first, second = ranks(tmp_path, f"{once}\n    {kill}")
    assert first["some"] == second["some"]
    with pytest.raises(StudentRaised):
        ranks(tmp_path, "import os\n    if dist.get_rank(): os.kill(os.getpid(), 9)")


def test_a_rank_that_waits_for_nobody_is_told_where_it_stands(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(StudentRaised) as caught:
        ranks(tmp_path, "if dist.get_rank() == 1: return")
    assert (caught.value.evidence.message, caught.value.evidence.line) == (rank_processes.ALONE, 7)
    assert time.monotonic() - began < 30


def test_two_that_wait_for_each_other(tmp_path: Path) -> None:
    with pytest.raises(StudentRaised) as caught:
        ranks(tmp_path, "dist.recv(next(model.parameters()).grad, 1 - dist.get_rank())")
    assert (caught.value.evidence.message, caught.value.evidence.line) == (rank_processes.ALONE, 4)


def test_a_slow_rank_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Far more work than the looks take that find it standing still, also on a busy machine.
    monkeypatch.setattr(rank_processes, "LOOKS", 20)
    busy = (
        "import time; until = time.process_time() + 2 * dist.get_rank()\n"
        "    while time.process_time() < until: pass"
    )
    assert ranks(tmp_path, busy)[0]["some"]["weights_kept"]


def test_an_endless_rank_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_processes, "ENDLESS", 1.0)
    with pytest.raises(StudentRaised) as caught:
        ranks(tmp_path, "while True: pass")
    assert caught.value.evidence.message == rank_processes.STUCK


def test_an_error_says_more_than_its_echo(tmp_path: Path) -> None:
    with pytest.raises(StudentRaised) as caught:
        ranks(tmp_path, "if dist.get_rank() == 1: raise KeyError('mine')")
    assert (caught.value.evidence.type, caught.value.evidence.line) == ("KeyError", 4)


def test_a_process_that_leaves(tmp_path: Path) -> None:
    with pytest.raises(StudentRaised) as caught:
        ranks(tmp_path, "import os; os._exit(0)")
    assert caught.value.evidence.message == rank_processes.GONE


@pytest.mark.parametrize("said", rank_processes.BROKEN)
def test_an_error_says_more_than_a_broken_connection(tmp_path: Path, said: str) -> None:
    late = "import time; time.sleep(0.3); raise KeyError('mine')"
    with pytest.raises(StudentRaised) as caught:
        ranks(tmp_path, f"if dist.get_rank() == 0: raise RuntimeError('gloo: {said}')\n    {late}")
    assert (caught.value.evidence.type, caught.value.evidence.line) == ("KeyError", 5)
