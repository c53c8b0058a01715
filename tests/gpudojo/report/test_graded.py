"""Pages of a class that was really graded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gpudojo.authoring.sample_class import SampleSubmission, hand_in
from gpudojo.report.writing import ReportOptions, write_report

from tests.gpudojo.classes.test_grading import grade, wrong

FOURTH = "04_modifying_training_loop_gpu.py"
WAITING = """\
def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device).train()
    summed, samples = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        model.zero_grad()
        found = loss_fn(model(x), y)
        found.backward()
        optimizer.step()
        for _ in range(5):
            read = found.item()
        summed, samples = summed + read * len(y), samples + len(y)
    return summed / samples if samples else 0.0
"""


@pytest.fixture(scope="module")
def graded_pages(tmp_path_factory: pytest.TempPathFactory, loaded_fork_servers: None) -> Path:
    folder = tmp_path_factory.mktemp("handed_in")
    out = tmp_path_factory.mktemp("graded")
    stem = FOURTH.removesuffix(".py")
    for name, source, form in (
        ("waits", WAITING, "folder"),
        ("forgets", wrong(f"{stem}/missing_zero_grad"), "folder"),
        ("notebook", wrong(f"{stem}/missing_zero_grad"), "notebook"),
    ):
        hand_in(SampleSubmission(name, {FOURTH: source.encode()}, form), folder)
    grade(folder, out, only=frozenset({"train_epoch"}))
    write_report(ReportOptions(out, out / "report"), print)
    return out / "report"


def text_of(graded_pages: Path, name: str) -> str:
    return (graded_pages / "students" / f"{name}.html").read_text(encoding="utf-8")


def test_every_wait_is_drawn_with_its_line(graded_pages: Path) -> None:
    text = text_of(graded_pages, "waits")
    found = re.search(r"Your code waits for the device (\d+) times, the reference (\d+) time", text)
    assert found is not None
    assert int(found[1]) == 5 * int(found[2])
    assert re.search(
        r"Line 11 made the host wait \d+ times: <code>read = found.item\(\)</code>", text
    )


@pytest.mark.parametrize("name", ["forgets", "notebook"])
def test_a_failed_check_shows_the_student_s_own_line(graded_pages: Path, name: str) -> None:
    text = text_of(graded_pages, name)
    assert re.search(r"<mark><span class=\"n\">\d+</span> +loss.backward\(\)</mark>", text)
    assert "missing zero_grad" in text
    assert ("of cell 1 of notebook.ipynb" in text) == (name == "notebook")


def test_reads_of_the_grader_are_not_counted(graded_pages: Path) -> None:
    """It looks at gradients in the middle of a backward pass, which is no wait of the student's."""
    text = text_of(graded_pages, "forgets")
    found = re.search(r"Your code waits for the device (\d+) times, the reference (\d+) time", text)
    assert found is not None
    assert found[1] == found[2]
    assert not re.search(r"made the host wait [^:]*: <code>loss.backward", text)


def test_the_reference_s_code_is_on_no_page(graded_pages: Path) -> None:
    solution = Path(__file__).parents[3] / "reference" / "day8" / FOURTH
    inside = (
        solution.read_text(encoding="utf-8")
        .partition("# BEGIN SOLUTION")[2]
        .partition("# END SOLUTION")[0]
    )
    theirs = {line.strip() for line in inside.splitlines() if len(line.strip()) > 20}
    own = {line.strip() for line in WAITING.splitlines()}
    assert len(theirs - own) > 3
    # The others use the reference's own words; what is on this page and not in the student's file
    # is not the student's.
    text = text_of(graded_pages, "waits")
    assert "found.backward()" in text
    assert not [line for line in theirs - own if line in text]
