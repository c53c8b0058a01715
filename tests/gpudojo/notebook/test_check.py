"""`check` in a session: results, lines of the function's own cell, hints, tables."""

from __future__ import annotations

import functools
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from gpudojo import notebook
from gpudojo.grading import references
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.grading.shipped_evidence import (
    ShippedEvidence,
    compress_evidence,
    encode_shipped_evidence,
)
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import NoReference
from gpudojo.model.results import Outcome
from gpudojo.model.time_outs import describe_time_out, still_running_after
from gpudojo.release.recording import _timelines_of_calls
from virtual_cuda.ledger.timeline_text import NOTHING_BESIDE

from tests.gpudojo.notebook.conftest import Session
from tests.gpudojo.notebook.solving import ROOT, answers, reference

WRONG = ROOT / "tests" / "day8" / "wrong" / "04_modifying_training_loop_gpu"
STUB = "def train_epoch(model, loader, loss_fn, optimizer, device):\n    raise NotImplementedError"
SELECT = "import torch\n" + reference()["select_device"]


def outcomes(report: Any) -> set[Outcome]:
    return {outcome for checked in report.checked for outcome in checked.outcomes}


def test_a_right_answer_gets_all_points_and_a_timeline(session: Session) -> None:
    cell = "# a comment above\n\n" + reference()["train_epoch"]
    session.run("import torch", cell)
    report = session.check("train_epoch")
    (checked,) = report.checked
    assert outcomes(report) == {Outcome.PASSED}
    assert (checked.points, checked.most) == (14, 14)
    assert checked.hints == ()
    assert checked.lines is not None
    rows = {row[1].strip(): row for row in checked.lines.rows}
    number, code, cells = rows["inputs, targets = inputs.to(device), targets.to(device)"]
    assert cells[0], "what a line moves to the device is in the picture"
    assert rows["model.to(device)"][2][0]
    assert not rows["model.train()"][2][0]
    assert cell.splitlines()[int(number) - 1] == code, "lines are counted within the cell"
    assert re.search(r"Line \d+ made the host wait for the device \d+ times\.", repr(report))
    assert checked.timelines is not None
    assert checked.timelines[0].waits.keys() <= checked.timelines[0].lines.keys()
    assert re.search(
        r"\n +host [─FBS│]+\n .*↓.*\n +device [─•·│]+\n +memory [▁-█]+\n", repr(report)
    )
    waits = checked.timelines[0].wait_count
    assert f"Your code: {waits} waits (reference: {waits})" in repr(report)
    assert '<span class="t-wait">│</span>' in report._repr_html_()


def test_the_line_shown_is_one_that_was_executed(session: Session) -> None:
    body = "    if device is None:\n        return model.to(device)\n    return number(model)\n"
    session.run(f"def move_model(model, device):\n{body}def number(model):\n    return 8\n")
    code = session.names["move_model"].__code__
    failed = [
        each
        for each in session.check("move_model").checked[0].results
        if each.outcome is Outcome.FAILED
    ]
    assert failed[0].check == "moves_every_parameter"
    assert (failed[0].line, failed[0].ran) == (2, ((1, 2), (4, 4), (5, 6)))
    assert session.names["move_model"].__code__ is code


def test_without_a_reference_its_recorded_calls_are_compared(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a released repository, which has the reference's evidence and timelines, and no line of
    it.
    """
    exercise = next(
        each for each in exercises_of("day8") if each.stem == "04_modifying_training_loop_gpu"
    )
    function = exercise.functions[0]
    written = ReferenceSolution(ROOT / "reference" / "day8" / f"{exercise.stem}.py")
    key = f"{exercise.stem}::train_epoch"
    evidence = {
        f"8/virtual/{key}": compress_evidence(written.evidence_of(exercise, function, "virtual", 8))
    }
    drawn = compress_evidence(_timelines_of_calls(exercise, function, written))
    packed = encode_shipped_evidence(
        ShippedEvidence("day8", (8,), {key: "(…)"}, evidence, timelines={key: drawn})
    )
    release = msgspec.msgpack.decode(packed, type=ShippedEvidence)

    def no_reference(path: Path) -> Path:
        raise NoReference(path.name)

    monkeypatch.setattr(references, "reference_of", no_reference)
    monkeypatch.setattr(references, "read_shipped_evidence", lambda name: release)
    waiting = reference()["train_epoch"].replace(
        "optimizer.step()", "optimizer.step()\n        loss.item()"
    )
    session.run("import torch", waiting)
    (checked,) = session.check("train_epoch").checked
    assert checked.timelines is not None
    yours, theirs = checked.timelines
    assert theirs is not None
    assert (theirs.scenario, theirs.place, theirs.lines) == (yours.scenario, yours.place, {})
    assert yours.wait_count > theirs.wait_count > 0
    spoiled = msgspec.structs.replace(release, timelines={key: b"x"})
    monkeypatch.setattr(references, "read_shipped_evidence", lambda name: spoiled)
    (checked,) = session.check("train_epoch").checked
    assert checked.timelines is not None
    assert checked.timelines[1] is None, "a picture less, and judged all the same"
    assert checked.points > 0
    assert NOTHING_BESIDE in repr(session.check("train_epoch"))


def test_a_wrong_answer_shows_what_happened_where_and_why(session: Session) -> None:
    session.run(
        "import torch\nfrom torch import nn",
        answers(WRONG / "mean_of_batch_means.py")["train_epoch"],
    )
    report = session.check("train_epoch")
    said = repr(report)
    outcome_of_each = [result.outcome for result in report.checked[0].results]
    failed = report.checked[0].parts[outcome_of_each.index(Outcome.FAILED)]
    assert [label for label, _ in failed] == [
        "happened",
        "expected",
        "line",
        "mistake",
        "why",
        "worth",
        "hint",
        "",
    ]
    assert re.fullmatch(r"line (\d+)\n +\1 \| total \+= loss\.item\(\)", dict(failed)["line"])
    assert dict(failed)["mistake"] == "mean of batch means"
    assert "train_epoch: 12.5 of 14 points" in said
    assert "(hint 1 of 3; one more with check(train_epoch, hints=2))" in said
    assert dict(failed)["hint"].startswith("How much does each sample count")
    shown = session.check("train_epoch", hints=5)
    [told] = shown.checked[0].told
    assert [label for label, _ in told.parts][-4:] == [
        *(f"hint {number}" for number in range(1, 4)),
        "read",
    ]
    [told] = session.check("train_epoch", hints=0).checked[0].told
    assert "hint" not in dict(told.parts)


def test_what_passed_and_what_waits_takes_one_line_each(session: Session) -> None:
    session.run(
        "import torch\nfrom torch import nn",
        answers(WRONG / "mean_of_batch_means.py")["train_epoch"],
    )
    said = repr(session.check("train_epoch"))
    lines = said.splitlines()
    assert len([line for line in lines if line.startswith("  passed ")]) == 1
    assert re.search(r"  passed   \d+ checks: runs, calls_the_model, ", said)
    session.run("def train_epoch(model, loader, loss_fn, optimizer, device):\n    return 1 / 0\n")
    report = session.check("train_epoch")
    said = repr(report)
    assert said.index("  FAILED ") < said.index("  blocked  ")
    assert re.search(r"  blocked  \d+ checks until `runs` passes: calls_the_model, ", said)
    assert "which has to pass first" not in said
    assert report._repr_html_().count("<details") == 1


def test_an_error_shows_the_line_of_its_cell(session: Session) -> None:
    session.run(
        "one = 1\n\n\n"
        "def train_epoch(model, loader, loss_fn, optimizer, device):\n"
        "    x = one\n"
        "    return x / 0\n"
    )
    failed = session.check("train_epoch").checked[0].parts[0]
    assert dict(failed)["line"] == "line 6\n   6 | return x / 0"


def test_a_stub_is_to_do(session: Session) -> None:
    session.run(STUB)
    report = session.check("train_epoch")
    assert outcomes(report) == {Outcome.TODO}
    assert (
        repr(report).splitlines()[1] == "  still to do: fill in its cell, run it, and check again."
    )
    assert report.checked[0].hints == ()
    assert len(session.check("train_epoch", hints=2).checked[0].hints) == 3


def test_the_current_function_of_the_session_is_checked(session: Session) -> None:
    session.run(STUB, SELECT)
    session.names["train_epoch"] = lambda model, loader, loss_fn, optimizer, device: 0.0
    assert outcomes(session.check("train_epoch")) >= {Outcome.FAILED}
    session.run("def mine(prefer=None):\n    return 0.0\n\n\ntrain_epoch = mine")
    assert "TypeError" in repr(session.check("train_epoch")), "the name in the notebook counts"


@pytest.mark.parametrize("way", ["decorator", "partial", "object", "no source"])
def test_wrapped_functions_are_unwrapped(session: Session, way: str) -> None:
    source = SELECT.removeprefix("import torch\n")
    if way == "decorator":
        session.run(f"import torch\n@torch.no_grad()\n{source}")
    elif way == "partial":
        session.run(
            SELECT,
            "import functools\nselect_device = functools.partial(select_device, prefer=None)",
        )
    elif way == "object":
        session.run(
            SELECT,
            "class Select:\n    def __call__(self, prefer=None):\n        return choose(prefer)",
        )
        session.run("choose, select_device = select_device, Select()")
    else:
        exec(SELECT, session.names)
    report = session.check("select_device")
    assert "passed" in outcomes(report)
    assert ("error" in outcomes(report)) is False
    if way != "partial":
        assert report.checked[0].points == 8, repr(report)


def test_a_stub_without_source_is_to_do(session: Session) -> None:
    exec(STUB, session.names)
    assert outcomes(session.check("train_epoch")) == {Outcome.TODO}
    exec("def train_epoch(a, b):\n    c = NotImplementedError\n    raise c", session.names)
    assert outcomes(session.check("train_epoch")) != {Outcome.TODO}


def test_answers_are_found_by_their_name(session: Session) -> None:
    answered = reference()["ANSWERS"]
    session.run(answered)
    assert session.check("ANSWERS").checked[0].points == pytest.approx(2)
    session.run(answered.replace('"b"', '"a"'))
    report = session.check("ANSWERS")
    assert report.checked[0].points == pytest.approx(1.6)
    assert 'hard-coded "cuda"' in repr(report)
    session.run("ANSWERS = dict.fromkeys(ANSWERS)")
    assert outcomes(session.check("ANSWERS")) == {Outcome.TODO}
    session.run("ANSWERS['portable'] = 'b'")
    assert outcomes(session.check("ANSWERS")) == {Outcome.TODO, Outcome.PASSED}


def test_check_without_arguments_checks_all_definitions(session: Session) -> None:
    empty = session.check()
    assert repr(empty) == "Nothing to check yet: run the cells above first, from the top."
    session.run(SELECT, STUB, "def move_model(model, device):\n    return model")
    report = session.check()
    assert report.table is not None
    rows = {row.exercise: row for row in report.table.rows}
    assert list(rows) == [
        "01_checking_device",
        "02_moving_model_to_device",
        "04_modifying_training_loop_gpu",
    ]
    assert (rows["01_checking_device"].points, rows["01_checking_device"].state) == (8, "done")
    assert rows["04_modifying_training_loop_gpu"].state == "to do"
    second = exercises_of("day8")[1]
    assert rows[second.stem].max_points == second.points
    assert f"{len(second.functions[1].checks)} not run" in rows[second.stem].state
    assert report.table.following == "check(move_model)"
    assert "Well done" not in repr(report)
    session.names = {"select_device": session.names["select_device"]}
    assert repr(session.check()).endswith("Everything that is defined here passes. Well done!")
    assert "Well done!" in session.check()._repr_html_()
    assert "next: check(move_model)" in repr(report)
    assert "next: <code>check(move_model)</code>" in report._repr_html_()


@pytest.mark.parametrize(
    ("thing", "sentence"),
    [
        (
            0.25,
            "check got an object of the class float. Pass a function, as in check(train_epoch), ",
        ),
        (None, "check got None. "),
        (torch.ones(2), "check got an object of the class Tensor. "),
        ({"portable": "b"}, "check got an object of the class dict. "),
        (len, "`len` is not a task. The tasks are `select_device`, "),
        ("train_epoc", "`train_epoc` is not a task; did you mean `train_epoch`?"),
        ("train_epoch", "`train_epoch` is not defined here yet: run its cell first."),
        (functools.partial(len), "check got an object of the class partial. "),
    ],
)
def test_wrong_arguments_get_a_message(session: Session, thing: Any, sentence: str) -> None:
    report = notebook.make_report(thing, namespace=session.names)
    assert repr(report).startswith(sentence)
    assert html.escape(sentence).replace("`", "")[:20] in re.sub(
        "</?code>", "", report._repr_html_()
    )


def test_wrong_options_get_a_message(session: Session) -> None:
    session.run(STUB)
    assert repr(session.check("train_epoch", hints="all")).startswith("hints is a number")
    assert repr(session.check("train_epoch", bench="tpu")).startswith("there is no device 'tpu'")
    assert "this machine has no 'cuda' device" in repr(session.check("train_epoch", bench="cuda"))


def test_an_unknown_seed_of_a_release_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run(SELECT)
    monkeypatch.setattr(notebook, "known_seeds", lambda path, exercise: (8, 9))
    assert session.check("select_device", seed=9).checked[0].points == 8
    said = repr(session.check("select_device", seed=77))
    assert said == "what the reference does is recorded here for the seeds 8 and 9, not for 77."


def test_a_function_can_be_given_by_name(session: Session) -> None:
    session.run(SELECT)
    assert notebook.make_report("select_device", namespace=session.names).checked[0].points == 8


class Tags(HTMLParser):
    """Which elements there are, and what text is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_texts_stay_texts(session: Session) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    session.run(
        "def train_epoch(model, loader, loss_fn, optimizer, device):\n"
        f"    model.to(device)  # {evil}\n    next(model.parameters()).sum().item()  # {evil}\n"
        f"    raise ValueError('`{evil}`')\n"
    )
    report = session.check("train_epoch")
    other = notebook.make_report(f"<b onclick='x'>{evil}", namespace=session.names)
    for shown, times in ((report, 3), (other, 1)):
        tags = Tags()
        tags.feed(shown._repr_html_())
        assert not tags.tags & {"script", "img", "b"}
        assert not any(name.startswith("on") for name in tags.attributes)
        assert tags.text.count("alert(1)") >= times


def test_checking_changes_nothing_in_the_session(session: Session) -> None:
    session.run("from torch import manual_seed\nfrom torch.cuda import is_available", SELECT)
    before = dict(session.names)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    session.check("select_device")
    assert torch.equal(torch.get_rng_state(), state)
    assert session.names.keys() == before.keys()
    assert all(session.names[name] is before[name] for name in before)
    assert not torch.cuda.is_available()


def test_output_is_shown_and_limited(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.run("def select_device(prefer=None):\n    print('hello' * 1000)\n")
    session.check("select_device")
    printed = capsys.readouterr().out
    assert printed.startswith("hellohello")
    assert len(printed) < 2 * notebook.OUTPUT_CHARACTERS


def test_an_endless_function_times_out(session: Session) -> None:
    session.run("def select_device(prefer=None):\n    while True:\n        pass\n")
    report = session.check("select_device", seconds=0.5)
    first = dict(report.checked[0].parts[0])
    assert first["happened"].startswith(
        describe_time_out("select_device", still_running_after(0.5))
    )
    assert first["line"].startswith(("line 2\n", "line 3\n"))


def test_check_does_nothing_while_a_notebook_is_graded(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "exercise_day8_1"}
    exec("from gpudojo.notebook import check\nfound = check(len), check()", namespace)
    assert namespace["found"] == (None, None)
    assert capsys.readouterr().out == ""
    exec("from gpudojo.notebook import check\ncheck(len)", {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("`len` is not a task")


def test_a_function_without_device_use_has_no_table(session: Session) -> None:
    session.run(reference()["read_nvidia_smi"])
    report = session.check("read_nvidia_smi")
    assert outcomes(report) == {Outcome.PASSED}
    assert report.checked[0].lines is None
    assert report.checked[0].timelines is None
