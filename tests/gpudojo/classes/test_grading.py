"""A small class, graded for real: once, again, after changes, after being stopped."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpudojo.classes import fingerprints, judge_pool, judging, local_runner
from gpudojo.classes.class_grading import ClassGrading, GradedClass
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.classes.records import Record
from gpudojo.classes.store import Store
from gpudojo.classes.verdict_store import VerdictStore, VerdictSummary
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass
from gpudojo.model.results import ClassResults, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import read
from gpudojo.submissions.entries import IgnoredPath

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "reference" / "day8"
ONLY = frozenset({"select_device", "train_epoch", "average_gradients"})
FIRST = "01_checking_device.py"
FOURTH = "04_modifying_training_loop_gpu.py"

pytestmark = pytest.mark.usefixtures("loaded_fork_servers")


class Quiet:
    """Progress that counts."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.told: list[str] = []
        self.ignored: list[str] = []
        self.layers: dict[str, str] = {}

    def report_submissions(self, count: int, known: int, ignored: Any) -> None:
        self.ignored = [one.path.name for one in ignored if isinstance(one, IgnoredPath)]

    def report_preparation(self, what: str) -> None: ...

    def report_isolation(self, layers: dict[str, str]) -> None:
        self.layers = layers

    def report_running(self, tasks: Any) -> None: ...

    def report_verdict(self, submission: str, status: SubmissionStatus, ran: bool) -> None:
        self.told.append(submission)
        if ran:
            self.ran.append(submission)


def grade(folder: Path, out: Path, **more: Any) -> tuple[GradedClass, Quiet, ClassResults]:
    watcher = Quiet()
    more = {"only": ONLY, "jobs": 2, "seconds": 5.0, "secret": "secret", **more}
    outcome = ClassGrading(
        GradingOptions(submissions=[folder], out=out, reference=REFERENCE, **more), watcher
    ).run()
    return outcome, watcher, read(out / "results.json")


def by_name(results: ClassResults) -> dict[str, SubmissionRow]:
    return {row.submission: row for row in results.submissions}


def digests(results: ClassResults) -> set[str]:
    """Of the submissions that could be read."""
    return {row.digest for row in results.submissions if row.record}


def wrong(name: str) -> str:
    return (ROOT / "tests" / "day8" / "wrong" / f"{name}.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("class")
    files = {path.name: path.read_bytes() for path in REFERENCE.glob("*.py")}
    for name in ("solved", "twin"):
        (made / name).mkdir()
        for file, data in files.items():
            (made / name / file).write_bytes(data)
    (made / "wrong").mkdir()
    (made / "wrong" / FOURTH).write_text(wrong("04_modifying_training_loop_gpu/missing_step"))
    (made / "endless").mkdir()
    (made / "endless" / FIRST).write_text(
        "def select_device(prefer=None):\n    while True: pass\n"
    )  # on one line
    (made / "endless" / FOURTH).write_bytes(files[FOURTH])
    (made / "crash").mkdir()
    (made / "crash" / FIRST).write_text(
        "import ctypes\n\ndef select_device(prefer=None):\n    ctypes.string_at(0)\n"
    )
    (made / "crash" / FOURTH).write_bytes(files[FOURTH])
    (made / "broken.zip").write_bytes(b"PK\x03\x04 no archive")
    with zipfile.ZipFile(made / "zipped.zip", "w") as archive:
        archive.writestr(f"zipped/{FOURTH}", files[FOURTH])
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [
        {**cell, "source": "!pip install torch\n%matplotlib inline\nimport torch"},
        {**cell, "source": "def broken(:\n    pass"},
        {
            **cell,
            "source": "\n\n"
            + (REFERENCE / FIRST).read_text(encoding="utf-8").partition("\nif __name__")[0],
        },
        {**cell, "source": wrong("04_modifying_training_loop_gpu/missing_step")},
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (made / "notebook.ipynb").write_text(json.dumps(notebook))
    (made / "roster.csv").write_text("who\n")
    return made


@pytest.fixture(scope="module")
def graded(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Quiet, ClassResults]:
    out = tmp_path_factory.mktemp("out")
    _, watcher, results = grade(folder, out)
    return out, watcher, results


def test_everybody_has_one_result(graded: tuple[Path, Quiet, ClassResults], folder: Path) -> None:
    out, watcher, results = graded
    names = {"solved", "twin", "wrong", "endless", "crash", "broken", "zipped", "notebook"}
    assert (
        sorted(row.submission for row in results.submissions)
        == sorted(names)
        == sorted(watcher.told)
    )
    assert watcher.ignored == ["roster.csv"]
    assert (out / "results.csv").read_text(encoding="utf-8").count("\n") == len(names) + 1
    # of two with the same content, one is run
    assert len(watcher.ran) == len(names) - 2


@pytest.mark.parametrize(
    ("name", "status", "score"),
    [
        ("solved", SubmissionStatus.GRADED, 24.0),
        ("twin", SubmissionStatus.GRADED, 24.0),
        ("zipped", SubmissionStatus.GRADED, 14.0),
        ("endless", SubmissionStatus.TIMED_OUT, 14.0),
        ("crash", SubmissionStatus.CRASHED, 14.0),
        ("broken", SubmissionStatus.UNREADABLE, 0.0),
    ],
)
def test_a_status_and_the_part_that_could_be_graded(
    graded: tuple[Path, Quiet, ClassResults], name: str, status: SubmissionStatus, score: float
) -> None:
    row = by_name(graded[2])[name]
    average = {
        f: p for e in row.exercises for c in e.checks if (f := c.function) for p in [c.max_points]
    }
    assert (row.status, row.score) == (
        status,
        score if name not in ("solved", "twin") else row.max_score,
    )
    assert set(average) == ONLY
    assert bool(row.reason) == (status is not SubmissionStatus.GRADED)


def test_the_mistake_is_named_at_the_line_of_the_file_or_the_cell(
    graded: tuple[Path, Quiet, ClassResults],
) -> None:
    rows = by_name(graded[2])
    for name, places in (
        ("wrong", {("missing-step", None)}),
        ("notebook", {("missing-step", 4), ("syntax-error", 2)}),
    ):
        named = [c for e in rows[name].exercises for c in e.checks if c.misconception]
        assert {(check.misconception, check.cell) for check in named} == places
        assert named[0].line is not None
    definitions = {d.function: d for d in rows["notebook"].definitions}
    assert (definitions["select_device"].cell, definitions["train_epoch"].cell) == (3, 4)
    assert any("SyntaxError" in note for note in rows["notebook"].notes)


def test_a_second_run_runs_nothing_and_says_the_same(
    graded: tuple[Path, Quiet, ClassResults], folder: Path
) -> None:
    out, _, results = graded
    before = (out / "results.json").read_bytes()
    sources = {
        digest: Store(out).load_sources(digest) for digest in (results.reference, *digests(results))
    }
    assert all(sources.values())
    assert sources[results.reference] == {
        path.name: path.read_bytes() for path in REFERENCE.glob("*.py")
    }
    shutil.rmtree(Store(out).folder / "sources")  # as in a folder of an earlier version
    outcome, watcher, again = grade(folder, out)
    assert (outcome.ran, watcher.ran) == (0, [])
    assert again == results
    assert sources == {digest: Store(out).load_sources(digest) for digest in sources}
    assert (out / "results.json").read_bytes() == before


def test_judging_again_runs_nothing_and_sees_other_points(
    graded: tuple[Path, Quiet, ClassResults], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _, results = graded
    monkeypatch.setattr(fingerprints, "fingerprint_of_judging", lambda day: "changed")
    _, watcher, again = grade(folder, out, rejudge=True)
    assert watcher.ran == []
    assert [row.score for row in again.submissions] == [row.score for row in results.submissions]


@pytest.mark.slow
def test_an_edited_check_is_judged_as_by_a_grader_that_knows_nothing(
    graded: tuple[Path, Quiet, ClassResults], folder: Path, tmp_path: Path
) -> None:
    """With a copy of the clone, in which the code of a check is changed, as an author does."""
    without_caches = shutil.ignore_patterns("__pycache__")
    for part in ("graders", "reference"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=without_caches)
    code = tmp_path / "graders"
    module = code / "gpudojo" / "days" / "day8" / "checking_device.py"
    command = [
        sys.executable,
        "-m",
        "gpudojo",
        "grade",
        str(folder),
        "--seed",
        "secret",
        "--time-limit",
        "5",
    ]
    command += [
        "--reference",
        str(tmp_path / "reference" / "day8"),
        *(word for name in sorted(ONLY) for word in ("--only", name)),
    ]
    command += ["--rejudge", "--out"]
    environment = os.environ | {"PYTHONPATH": str(code)}

    def rejudged(out: Path) -> bytes:
        subprocess.run(
            [*command, str(out)],
            env=environment,
            cwd=tmp_path,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return (out / "results.json").read_bytes()

    for out in (known := tmp_path / "known", tmp_path / "fresh"):
        shutil.copytree(graded[0], out)
    before = rejudged(known)
    assert before == rejudged(known)
    text = module.read_text(encoding="utf-8")
    start = text.index('"""', text.index(".check("))
    end = text.index('"""', start + 3) + 3
    module.write_text(
        f"{text[:end]}\n    raise Failed('edited', 'edited'){text[end:]}", encoding="utf-8"
    )
    edited = rejudged(known)
    assert b'"edited"' in edited
    assert b'"edited"' not in before
    shutil.rmtree(tmp_path / "fresh" / ".dojo" / "rows")
    assert rejudged(tmp_path / "fresh") == edited == rejudged(known)


def test_a_verdict_is_made_again_from_another_record(
    graded: tuple[Path, Quiet, ClassResults], tmp_path: Path
) -> None:
    shutil.copytree(graded[0], out := tmp_path / "out")
    verdicts = VerdictStore(out, "day8", ONLY, graded[2].reference, "judging key")
    key = by_name(graded[2])["solved"].record
    record = verdicts.store.load_record(key)
    other = verdicts.store.load_record(by_name(graded[2])["zipped"].record)
    assert record is not None
    assert other is not None
    whole = verdicts.judge_and_keep(key)
    assert verdicts.kept_row(key) == whole
    verdicts.store.keep_record(key, other)
    assert verdicts.judge_and_keep(key).score < whole.score
    verdicts.store.keep_record(key, record)
    assert verdicts.judge_and_keep(key) == whole


def test_a_check_with_an_error_of_ours_is_judged_again(
    graded: tuple[Path, Quiet, ClassResults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(graded[0], out := tmp_path / "out")
    verdicts = VerdictStore(out, "day8", ONLY, graded[2].reference, "judging key")
    key = by_name(graded[2])["solved"].record
    fourth = next(
        exercise for exercise in exercises_of("day8") if exercise.stem == Path(FOURTH).stem
    )
    function = next(each for each in fourth.functions if each.name == "train_epoch")
    with monkeypatch.context() as failing:
        checks = [
            dataclasses.replace(check, judge=lambda seen, wanted: 1 / 0, needs=())
            for check in function.checks
        ]
        failing.setattr(function, "checks", checks)
        assert any("error in the check" in why for why in verdicts.judge_and_keep(key).needs_human)
    assert verdicts.judge_and_keep(key).needs_human == []


def test_several_processes_judge_as_one_does(
    graded: tuple[Path, Quiet, ClassResults], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _, results = graded
    for kept in (out / ".dojo" / "rows").rglob("*.json"):
        kept.write_text("{}")  # whoever judges has to write it anew
    monkeypatch.setattr(judge_pool, "RECORDS_PER_PROCESS", 2)
    here = list[str]()
    judged = judging.judge_record

    def noted(record: Record, *more: Any) -> SubmissionRow:
        here.append(record.digest)
        return judged(record, *more)

    monkeypatch.setattr(judging, "judge_record", noted)
    _, watcher, again = grade(folder, out, rejudge=True)
    assert again == results
    assert watcher.ran == []
    assert len(watcher.told) == len(results.submissions)
    assert len(here) < sum(1 for row in results.submissions if row.record), (
        "others have judged some"
    )


def test_what_is_told_of_a_verdict_is_in_it(graded: tuple[Path, Quiet, ClassResults]) -> None:
    out, _, results = graded
    verdicts = VerdictStore(out, "day8", ONLY, results.reference, "judging key")
    for key in {row.record for row in results.submissions if row.record}:
        judged = verdicts.judge_and_keep(key)
        assert verdicts.load_or_judge(key) == judged
        assert verdicts.summary_of(key) == VerdictSummary.of_row(judged)
        verdicts.store.row_path(key, verdicts.judging_key).write_bytes(
            b'{"status": "graded", "score": 1'
        )
        assert verdicts.summary_of(key) == VerdictSummary.of_row(verdicts.load_or_judge(key))


def test_facts_that_the_disk_has_damaged_cost_no_points(
    graded: tuple[Path, Quiet, ClassResults], tmp_path: Path
) -> None:
    out, _, results = graded
    shutil.copytree(out, tmp_path / "out")
    verdicts = VerdictStore(tmp_path / "out", "day8", ONLY, results.reference, "judging key")
    key = by_name(results)["solved"].record
    record = verdicts.store.load_record(key)
    assert record is not None
    name = next(each for each in record.seen if each.endswith("::train_epoch"))
    evidence = msgspec.msgpack.decode(record.seen[name])
    evidence["evidence"]["observations"]["epochs"]["facts"] = {"usual": b"no fact"}
    record.seen[name] = msgspec.Raw(msgspec.msgpack.encode(evidence))
    verdicts.store.keep_record(key, record)
    row = verdicts.judge_and_keep(key)
    assert row.status is SubmissionStatus.UNREADABLE
    assert "is damaged; run again without --rejudge" in row.reason


def test_other_processes_judge_while_submissions_run(
    graded: tuple[Path, Quiet, ClassResults],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, results = graded
    shutil.copytree(folder / "wrong", tmp_path / "class" / "wrong")
    shutil.copy(folder / "zipped.zip", tmp_path / "class")
    monkeypatch.setattr(judge_pool, "RECORDS_PER_PROCESS", 2)
    monkeypatch.setattr(
        judging, "judge_record", lambda *more: pytest.fail("judged in this process")
    )
    _, watcher, found = grade(tmp_path / "class", tmp_path / "out")
    assert sorted(watcher.ran) == ["wrong", "zipped"]
    for name, row in by_name(found).items():
        assert row.exercises == by_name(results)[name].exercises


def test_a_judging_process_that_is_killed_changes_no_result(
    graded: tuple[Path, Quiet, ClassResults], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _, results = graded
    monkeypatch.setattr(judge_pool, "RECORDS_PER_PROCESS", 2)

    def kill() -> None:
        while not (judges := multiprocessing.active_children()):
            time.sleep(0.01)
        judges[0].kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    _, _, again = grade(folder, out, rejudge=True)
    killer.join()
    assert again == results


def test_another_reference_is_another_measure(
    graded: tuple[Path, Quiet, ClassResults], folder: Path, tmp_path: Path
) -> None:
    """Nobody is run again, and nobody keeps a verdict that was made against the reference of
    before.
    """
    out, _, results = graded
    for path in REFERENCE.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / FIRST).open("a", encoding="utf-8") as file:
        file.write('\n\ndef select_device(prefer=None):\n    return torch.device("cpu")\n')
    watcher = Quiet()
    asked = GradingOptions(
        submissions=[folder],
        out=out,
        reference=tmp_path,
        only=ONLY,
        jobs=2,
        seconds=5.0,
        secret="secret",
    )
    ClassGrading(asked, watcher).run()
    again = by_name(read(out / "results.json"))
    assert watcher.ran == []
    assert again["solved"].score < by_name(results)["solved"].score
    _, _, restored = grade(folder, out)
    assert restored == results


def test_a_changed_submission_alone_is_run_again(
    graded: tuple[Path, Quiet, ClassResults], folder: Path, tmp_path: Path
) -> None:
    out, _, _ = graded
    file = folder / "wrong" / FOURTH
    before = file.read_bytes()
    try:
        file.write_bytes((REFERENCE / FOURTH).read_bytes() + b"\n# mended\n")
        outcome, watcher, results = grade(folder, out)
        assert (outcome.ran, watcher.ran) == (1, ["wrong"])
        assert by_name(results)["wrong"].score == 14.0
        file.write_bytes(before + b"\n# never seen\n")
        kept = (out / ".dojo" / "class.json").read_bytes()
        with pytest.raises(BadClass, match="--rejudge runs nothing"):
            grade(folder, out, rejudge=True, seconds=4.0)
        assert (out / ".dojo" / "class.json").read_bytes() == kept
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"only": frozenset({"train_epok"})}, "did you mean train_epoch"),
        ({"reference": Path("/nonexistent")}, "no reference solutions"),
        ({"submissions": []}, "nothing to grade"),
        ({"bench": "cuda"}, "needs an NVIDIA GPU, and this machine has none"),
        ({"bench": "mps"}, "needs a Mac"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(
    folder: Path, tmp_path: Path, more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_runner, "device_files", list)
    monkeypatch.setattr(sys, "platform", "linux")
    wishes: dict[str, Any] = {
        "submissions": [folder],
        "out": tmp_path,
        "reference": REFERENCE,
        **more,
    }
    with pytest.raises(BadClass, match=said):
        ClassGrading(GradingOptions(**wishes), Quiet()).run()


@pytest.mark.slow
def test_a_killed_run_is_resumed(
    folder: Path, graded: tuple[Path, Quiet, ClassResults], tmp_path: Path
) -> None:
    """SIGKILL for the grader in the middle: the same command resumes, and ends with the same
    results.
    """
    command = [
        sys.executable,
        "-m",
        "gpudojo",
        "grade",
        str(folder),
        "--out",
        str(tmp_path),
        "--seed",
        "secret",
    ]
    command += [
        "--time-limit",
        "5",
        "--jobs",
        "2",
        *(word for name in sorted(ONLY) for word in ("--only", name)),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "graders")}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    records = tmp_path / ".dojo" / "records"
    until = time.monotonic() + 60
    while (
        len(list(records.rglob("*.mp"))) < 8 and process.poll() is None and time.monotonic() < until
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = list(records.rglob("*.mp"))
    known = len(kept)
    assert known >= 8
    for record in kept:
        os.utime(record, (0, 0))
    outcome, _, results = grade(folder, tmp_path)
    # Files that differ in nothing share a record. The others are of the reference: what it did with
    # each set of scenarios that was drawn, and the drawings of it.
    of_submissions = 6
    of_reference = len(list(records.rglob("*.mp"))) - of_submissions
    assert known > of_reference
    # What the first run graded was graded then.
    graded_then = [row for row in results.submissions if row.graded_at.startswith("1970-01-01T")]
    assert len(graded_then) >= known - of_reference
    assert outcome.ran <= of_submissions - (known - of_reference)
    told = [(row.submission, row.status, row.score, row.exercises) for row in results.submissions]
    assert told == [
        (row.submission, row.status, row.score, row.exercises) for row in graded[2].submissions
    ]


@pytest.mark.parametrize(
    "damage", [b"", b"\xa2\xff\xfe", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"]
)
def test_a_damaged_record_is_made_again_and_costs_nobody_else(
    graded: tuple[Path, Quiet, ClassResults], folder: Path, tmp_path: Path, damage: bytes
) -> None:
    out, _, results = graded
    shutil.copytree(out, tmp_path / "out")
    bad = by_name(results)["zipped"].record
    reference = results.reference
    for path in (
        *(tmp_path / "out").rglob(f"{bad}*"),
        *(tmp_path / "out").rglob(f"{reference}.mp"),
    ):
        path.write_bytes(damage)
    outcome, watcher, again = grade(folder, tmp_path / "out")
    assert (outcome.ran, watcher.ran) == (1, ["zipped"])
    assert [(row.submission, row.exercises) for row in again.submissions] == [
        (row.submission, row.exercises) for row in results.submissions
    ]


def test_what_cannot_be_judged_needs_review_and_ends_nothing(
    graded: tuple[Path, Quiet, ClassResults],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, _, _ = graded
    shutil.copytree(out, tmp_path / "out")
    _, _, results = grade(folder, tmp_path / "out")  # an earlier test has left an attempt there
    judged = judging.judge_record
    bad = by_name(results)["crash"].digest

    def failing(record: Record, *more: Any) -> SubmissionRow:
        if record.digest == bad:
            raise KeyError("surprise")
        return judged(record, *more)

    monkeypatch.setattr(judging, "judge_record", failing)
    _, _, again = grade(folder, tmp_path / "out", rejudge=True)
    row = by_name(again)["crash"]
    assert row.needs_human == ["the grader could not judge it (KeyError: 'surprise')"]
    monkeypatch.undo()
    _, _, mended = grade(folder, tmp_path / "out")
    assert mended == results, "no such verdict is kept"


@pytest.mark.slow
def test_a_grader_that_is_stopped_for_a_while_takes_no_points(folder: Path, tmp_path: Path) -> None:
    """What a child prints is more than a pipe holds: it waits, and its own clock goes on."""
    first = (REFERENCE / FIRST).read_text(encoding="utf-8")
    for name in ("ada", "bob"):
        (tmp_path / "class" / name).mkdir(parents=True)
        text = f"print('x' * 500_000)\nimport time\ntime.sleep(1.5)\n{first}\n# {name}\n"
        (tmp_path / "class" / name / FIRST).write_text(text, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "gpudojo",
        "grade",
        str(tmp_path / "class"),
        "--out",
        str(tmp_path / "out"),
    ]
    command += ["--time-limit", "8", "--jobs", "2", "--only", "select_device", "--seed", "secret"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "graders")}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    until = time.monotonic() + 100
    records = tmp_path / "out" / ".dojo" / "records"
    while not list(records.rglob("*.mp")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGSTOP)
        time.sleep(12)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
    _, said = process.communicate(timeout=200)
    assert (process.returncode, said) == (0, "")
    rows = read(tmp_path / "out" / "results.json").submissions
    assert [(row.status, row.score) for row in rows] == [
        (SubmissionStatus.GRADED, row.max_score) for row in rows
    ]


def test_a_reference_has_more_time_than_a_student(tmp_path: Path) -> None:
    """On a busy machine a class is graded all the same."""
    first = (REFERENCE / FIRST).read_text(encoding="utf-8")
    files = {
        "reference": f"import time\ntime.sleep(2.2)\n{first}",
        "class/ada": first,
    }
    for name, text in files.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / FIRST).write_text(text, encoding="utf-8")
    options = GradingOptions(
        submissions=[tmp_path / "class"],
        out=tmp_path / "out",
        reference=tmp_path / "reference",
        only=frozenset({"select_device"}),
        secret="secret",
        seconds=2.0,
    )
    ClassGrading(options, Quiet()).run()
    assert by_name(read(tmp_path / "out" / "results.json"))["ada"].score == 8.0


def test_what_judging_needs_is_prepared_without_threads(tmp_path: Path) -> None:
    code = """
import os
from gpudojo.classes import judge_pool, judging
from gpudojo.model.catalogue import exercises_of
os.environ["OPENBLAS_NUM_THREADS"] = "2"
judging.prepare_judging(exercises_of("day8"))
assert os.environ["OPENBLAS_NUM_THREADS"] == "2"
import sys
print("numpy" in sys.modules, judge_pool._start_method().get_start_method())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "fork" if sys.platform == "linux" else "spawn"]
