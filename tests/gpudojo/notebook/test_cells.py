"""Functions that use definitions of other cells, also when cells run again or elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from gpudojo.days.day8.multiple_gpus import ranks as rank_processes
from gpudojo.grading import observe, subprocess_probe
from gpudojo.model.results import Outcome
from gpudojo.notebook.session_functions import code_of_cells, find_source, only_definitions
from virtual_cuda.errors import RealDeviceInUse

from tests.gpudojo.notebook.conftest import Session
from tests.gpudojo.notebook.solving import reference


def outcomes(report: Any) -> set[Outcome]:
    return {outcome for checked in report.checked for outcome in checked.outcomes}


def test_a_function_uses_definitions_of_other_cells(session: Session) -> None:
    helper = "def best():\n    return torch.device(BEST)"
    session.run("import torch", "BEST = 'cuda' if torch.cuda.is_available() else 'cpu'", helper)
    session.run("def select_device(prefer=None):\n    return best()")
    passed = [
        r.claim
        for r in session.check("select_device").checked[0].results
        if r.outcome is Outcome.PASSED
    ]
    # On a machine with a GPU `BEST` is another: the cells are begun anew there, as a file is.
    assert "If there is a CUDA GPU, it is chosen." in passed
    assert "Without a GPU the CPU is chosen, even if torch was built with CUDA." in passed


def test_only_definitions_of_a_cell_are_kept(session: Session) -> None:
    cell = (
        "import torch\n"
        "%time 3\n"
        "m = f(3)\n"
        "print(\n"
        "    m\n"
        ")\n"
        "@d\n"
        "class A: pass\n"
        "for x in []: pass\n"
        "y: int = 3"
    )
    assert (
        only_definitions(cell, {"m", "A", "y"})
        == "import torch\n\nm = f(3)\n\n\n\n@d\nclass A: pass\n\ny: int = 3"
    )
    assert only_definitions(cell, {"y"}) == "import torch\n\n\n\n\n\n\n\n\ny: int = 3"
    assert only_definitions("def (", set()) == "def ("
    session.run(
        "a = 2",
        "z = a/1\nmodel = print('a long training')",
        "import torch",
        "def g(x=a):\n    return z + x",
    )
    session.run("print(z)\n\n\ndef f(model):\n    return g(model)")
    session.names["In"].append("check(f)")
    # A parameter is no use of the model that happens to be there.
    others = ["a = 2", "z = a/1\n", "import torch", "def g(x=a):\n    return z + x"]
    assert code_of_cells(find_source("f", session.names["f"]), session.names) == [
        *(f"exec(compile({text!r}, '<another cell>', 'exec'))" for text in others),
        "\n\n\ndef f(model):\n    return g(model)",
    ]


def test_lines_of_other_cells_are_in_the_table(session: Session) -> None:
    session.run("def to_device(x, device):\n    return x.to(device)")
    text = reference()["train_epoch"].replace("inputs.to(device), ", "to_device(inputs, device), ")
    session.run(text)
    report = session.check("train_epoch")
    assert outcomes(report) == {Outcome.PASSED}
    moves = report.checked[0].lines
    assert moves is not None
    (cells,) = (cells for _, code, cells in moves.rows if code.strip() == "return x.to(device)")
    assert cells[0]


def test_probes_that_need_another_process(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session that has used a real GPU, probes run elsewhere, and the cells have to be known
    there.
    """

    def in_use(*_: Any) -> Any:
        raise RealDeviceInUse("cuda")

    session.run(
        "import torch\nprint('done once')", "def mean(total, count):\n    return total / count"
    )
    text = reference()["train_epoch"].replace(
        "total / count if count else 0.0", "mean(total, count)"
    )
    session.run(f"\n\n@torch.enable_grad()\n{text}")
    here = session.check("train_epoch").checked[0]
    # A process that was started before has not been told where cells are left.
    subprocess_probe._subprocess.kill_process()
    monkeypatch.setattr(observe, "observe_here", in_use)
    try:
        elsewhere = session.check("train_epoch").checked[0]
        assert Outcome.FAILED in here.outcomes
        assert "ZeroDivisionError" in repr(here)
        assert (elsewhere.results, elsewhere.parts) == (here.results, here.parts)
        session.run("ANSWERS = {'portable': 'b'}")
        assert session.check("ANSWERS").checked[0].points == pytest.approx(0.4)
    finally:
        subprocess_probe._subprocess.kill_process()


@pytest.mark.slow
def test_two_processes_where_the_system_does_not_fork(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Mac and on Windows each process has to find the function by itself, from cells that are
    in no file.
    """
    monkeypatch.setattr(rank_processes, "FORKS", False)
    session.run("import torch.distributed as dist", "def size():\n    return dist.get_world_size()")
    session.run(reference()["average_gradients"].replace("dist.get_world_size()", "size()"))
    report = session.check("average_gradients")
    assert outcomes(report) == {Outcome.PASSED}, repr(report)
