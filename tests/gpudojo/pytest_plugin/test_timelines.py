"""`--timeline` and `--traces`: what the code did, beside the reference."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.gpudojo.pytest_plugin.conftest import REPOSITORY, Student

TRAIN = "04_modifying_training_loop_gpu.py"
# Right, but it waits for every parameter; and its class would clear the screen if a terminal obeyed
# it.
WAITING = """
import torch

Loud = type("Loud\\x1b[2J\\x9b", (torch.nn.Identity,), {})


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.to(device)
    model.train()
    total, count = 0.0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = Loud()(loss_fn(model(inputs), targets))
        loss.backward()
        norms = [p.grad.norm().item() for p in model.parameters()]  # \\x1b]0;title\\x07 stays text
        optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count if count else 0.0
"""


def test_timelines_are_drawn_and_traces_written(student: Student) -> None:
    student.write(f"day8/{TRAIN}", WAITING.replace("\\x1b]", "\x1b]").replace("\\x07", "\x07"))
    done = student.pytest("day8", "--timeline", "--traces", "traces", "-q")
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "= what your code did =" in said
    found = re.search(r"Your code: (\d+) waits? \(reference: (\d+)\)", said)
    assert found is not None, said
    assert int(found[1]) > int(found[2]) > 0
    host, between, device = re.search(
        r"\n {4}host (.*)\n {9}(.*)\n {2}device (.*)\n", said
    ).groups()  # type: ignore[union-attr]
    assert [n for n, sign in enumerate(host) if sign == "│"] == [
        n for n, sign in enumerate(device) if sign == "│"
    ]
    assert host.count("│") == between.count("│") == int(found[1])
    assert "↓" in between
    assert {"B", "S"} <= set(host)
    assert re.search(r"× │ line 16: norms = \[p\.grad\.norm\(\)\.item\(\)", said)
    assert not set(said) & {"\x1b", "\x9b", "\x07"}
    assert said.index("what your code did") < said.index("= points =")
    assert "1 trace in traces" in said
    (trace,) = (student.folder / "traces").glob("*.json")
    assert trace.name == "04_modifying_training_loop_gpu-train_epoch.json"
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    assert sum(event["cat"] == "wait" for event in timed) >= int(found[1])
    assert all(event["args"]["time"] == "modelled" for event in timed)
    assert {event["cat"] for event in timed} >= {"kernel", "copy", "issue"}


def test_timelines_are_optional_and_coloured(student: Student) -> None:
    student.write(f"day8/{TRAIN}", (REPOSITORY / "reference" / "day8" / TRAIN).read_bytes())
    assert "what your code did" not in student.pytest("day8", "-q").stdout
    coloured = student.pytest("day8", "-q", "--timeline", "--color=yes").stdout
    assert "\x1b[31m\x1b[1m│" in coloured, "waits are red"
    assert not (student.folder / "traces").exists()


def test_a_stub_has_no_timeline(student: Student) -> None:
    student.write(f"day8/{TRAIN}", (REPOSITORY / "exercises" / "day8" / TRAIN).read_bytes())
    said = student.pytest("day8", "--timeline").stdout
    assert "no timeline of train_epoch" in said
    assert "INTERNALERROR" not in said


@pytest.mark.skipif(os.name != "posix", reason="names a file as a folder")
def test_an_unwritable_traces_folder_ends_the_run_at_once(student: Student) -> None:
    student.write(f"day8/{TRAIN}", WAITING)
    done = student.pytest("day8", "--traces", f"day8/{TRAIN}/traces")
    assert done.returncode == 4
    assert f"--traces day8/{TRAIN}/traces: Not a directory" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
