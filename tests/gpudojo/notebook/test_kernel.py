"""A generated notebook, run by a real Jupyter kernel, with wrong and right answers."""

from __future__ import annotations

import os
import re
from typing import Any

import nbformat
import pytest
from gpudojo.release.notebooks import notebooks_of_day
from nbclient import NotebookClient

from tests.gpudojo.notebook.solving import ROOT, answers, reference

WRONG = (
    ROOT / "tests" / "day8" / "wrong" / "04_modifying_training_loop_gpu" / "mean_of_batch_means.py"
)
ENDLESS = (
    "@torch.no_grad()\ndef evaluate(model, loader, loss_fn, device):\n    while True:\n        pass"
)
RAISES = "import functools\n\n\ndef move_model(model, device):\n    return 1 / 0"
INTERRUPTED = {"interrupted": True}


def code(source: str, **metadata: Any) -> Any:
    return nbformat.v4.new_code_cell(source, metadata=metadata)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Every code cell's outputs, by its id: the notebook of 04 as it is, then what a student may
    try.
    """
    made = notebooks_of_day(ROOT, "day8")["notebooks/day8/04_modifying_training_loop_gpu.ipynb"]
    notebook = nbformat.reads(made.decode(), as_version=4)
    more = {
        "wrong": code(answers(WRONG)["train_epoch"]),
        "wrong-check": code("check(train_epoch); check(train_epoch, hints=3)"),
        "right": code(reference()["train_epoch"]),
        "right-check": code("check(train_epoch)"),
        "right-demo": code(notebook.cells[-1].source),
        "raises": code(RAISES),
        "raises-check": code("check(move_model)"),
        "everything": code("check()"),
        "endless": code(ENDLESS),
        "endless-check": code("check(evaluate)", **INTERRUPTED),
        "after": code("check(train_epoch, 3)"),
        "ranks": code("import torch.distributed as dist\n" + reference()["average_gradients"]),
        "ranks-check": code("check(average_gradients)"),
        "late": code("%timeit -n1 -r1 None\nprint(torch.cuda.is_available(), __name__)"),
    }
    for name, cell in more.items():
        cell.id = name
    notebook.cells += more.values()
    folder = tmp_path_factory.mktemp("notebooks")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: 4 if cell.metadata.get("interrupted") else 100,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def shown(outputs: list[Any], kind: str = "text/plain") -> str:
    return "\n".join(
        output.data[kind] for output in outputs if output.output_type == "display_data"
    )


def printed(outputs: list[Any]) -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_the_opening_cell_is_quiet_where_nothing_is_missing(seen: dict[str, list[Any]]) -> None:
    assert seen["04-opening"] == []
    assert seen["04-given-1"] == []


def test_nothing_raised(seen: dict[str, list[Any]]) -> None:
    assert [
        name for name, outputs in seen.items() if any(o.output_type == "error" for o in outputs)
    ] == []


def test_the_stub_is_to_do(seen: dict[str, list[Any]]) -> None:
    assert "train_epoch: 0 of 14 points" in shown(seen["04-train_epoch-check"])
    assert "still to do" in shown(seen["04-train_epoch-check"])
    assert "still to do" in shown(seen["04-train_epoch-check"], "text/html")
    assert "train_epoch is still to do: fill in its cell above." in printed(seen["04-demo"])


def test_the_wrong_answer(seen: dict[str, list[Any]]) -> None:
    first, second = seen["wrong-check"]
    said = first.data["text/plain"]
    drawn = first.data["text/html"]
    assert "12.5 of 14 points" in said
    assert "mistake   mean of batch means" in said
    assert "line      In[6], line 11\n" in said
    assert "one more with check(train_epoch, hints=2)" in said
    assert "hint 3" in second.data["text/plain"]
    for part in (
        '<span class="b failed">failed</span>',
        "mean of batch means",
        "In[6], line 11",
        "<th>to device</th>",
    ):
        assert part in drawn


def test_the_right_answer(seen: dict[str, list[Any]]) -> None:
    said = shown(seen["right-check"])
    drawn = shown(seen["right-check"], "text/html")
    assert "14 of 14 points" in said
    assert "FAILED" not in said
    assert re.search(
        r"What each line did .* T4 \(estimated\), modelled:\n +host +GPU +to device", said
    )
    assert re.search(r"total +[\d.]+ [mµ]s +[\d.]+ [mµ]s", said)
    assert 'class="m"' in drawn
    assert "hint" not in said
    assert "loss" in printed(seen["right-demo"])
    assert "still to do" not in printed(seen["right-demo"])


def test_an_error_is_shown_at_the_line_of_its_cell(seen: dict[str, list[Any]]) -> None:
    said = shown(seen["raises-check"])
    assert "ZeroDivisionError" in said
    assert "line 5\n" in said
    assert "5 | return 1 / 0" in said


def test_the_table(seen: dict[str, list[Any]]) -> None:
    said = shown(seen["everything"])
    assert "04_modifying_training_loop_gpu  ████████████████████     14 of 14    done" in said
    assert "next: check(move_model)" in said


def test_interrupting_ends_the_check_with_a_message(seen: dict[str, list[Any]]) -> None:
    assert shown(seen["endless-check"]).startswith("Interrupted while `evaluate` was checked.")
    said = shown(seen["after"])
    assert "14 of 14 points" in said, "the kernel goes on as if nothing had been"
    assert "check got an object of the class int" in said


def test_two_processes_are_started_from_a_kernel(seen: dict[str, list[Any]]) -> None:
    assert "1.5 of 1.5 points" in shown(seen["ranks-check"])


def test_the_session_is_as_it_was(seen: dict[str, list[Any]]) -> None:
    assert seen["late"][-1].text.endswith("False __main__\n")
