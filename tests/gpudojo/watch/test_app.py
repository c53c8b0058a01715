"""`dojo watch` as students use it: the real app and the real processes, driven by files that are
saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpudojo.grading.engine import result_of
from gpudojo.grading.feedback import hints_about
from gpudojo.model.exercise import Failed
from gpudojo.model.results import Outcome
from gpudojo.watch import view
from gpudojo.watch.course import Course, SkippedBreakpoint
from gpudojo.watch.saves import saves_by_polling, watch_saves
from rich.console import Console, RenderableType

REPOSITORY = Path(__file__).resolve().parents[3]
DEVICE = "01_checking_device.py"
TRAIN = "04_modifying_training_loop_gpu.py"
ASSESSMENT = "12_self_assessment.py"
BODY = """\
model.to(device)
    for inputs, targets in loader:
        print("batch of", len(targets))
        inputs.to(device)
        loss_fn(model(inputs), targets.to(device))
"""


def stub(name: str) -> str:
    return (REPOSITORY / "exercises" / "day8" / name).read_text(encoding="utf-8")


def solution(name: str) -> str:
    return (REPOSITORY / "reference" / "day8" / name).read_text(encoding="utf-8")


def written(name: str, body: str) -> str:
    return stub(name).replace("raise NotImplementedError\n", f"{body}\n", 1)


def replace(path: Path, text: str) -> None:
    """Saves as many editors do: the new file is renamed over the old one."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two exercises of the day; the other files are missing.

    References are found in this repository.
    """
    folder = tmp_path / "day8"
    folder.mkdir()
    for name in (DEVICE, TRAIN):
        (folder / name).write_text(stub(name), encoding="utf-8")
    return folder


def text_of(renderable: RenderableType, width: int = 80, **settings: bool) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"), **settings)  # type: ignore[arg-type]  # noqa: SIM115
    with console.file:
        console.print(renderable)
    return console.export_text()


def test_a_morning_with_the_app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong, hints, timeline, a syntax error, an endless loop, an exit, and right: each by saving
    the file.
    """
    pytest.importorskip("textual")
    from gpudojo.watch.app import WatchApp
    from textual.pilot import Pilot

    monkeypatch.setenv("NO_COLOR", "1")
    path = folder / TRAIN
    course = Course(path)
    app = WatchApp(course)

    def screen() -> str:
        found = re.findall(r"<text [^>]*>([^<]*)</text>", app.export_screenshot())
        return " ".join(html.unescape(" ".join(found)).split())

    async def until(pilot: Pilot[None], what: Callable[[], object]) -> None:
        end = time.monotonic() + 90
        while not what():
            assert time.monotonic() < end, screen()
            await pilot.pause(0.2)
        await pilot.pause()

    async def morning() -> None:
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await until(pilot, lambda: "Save a file to grade it." in screen())
            assert "04 A training loop" in screen(), (
                "it begins with the file that was named, or where the student was"
            )
            await pilot.press("up", "up", "up")
            await until(pilot, lambda: "to do: `select_device` is still a stub" in screen())
            await pilot.press("h")
            await until(pilot, lambda: "There are hints for" in screen())
            await pilot.press("question_mark")
            await until(pilot, lambda: "one more hint for the check that is shown" in screen())
            await pilot.press("escape")
            path.write_text(written(TRAIN, BODY), encoding="utf-8")
            await until(pilot, lambda: re.search(r"❱ \d+ inputs\.to\(device\)", screen()))
            assert "04 A training loop" in screen()
            assert course.current.printed["train_epoch"].startswith(
                "[scenario model_starts_on_the_cpu]\nbatch of 4\n[scenario "
            )
            result = course.current.first
            function = course.current.exercise.functions[0]
            assert result is not None
            await pilot.press("h")
            await until(
                pilot, lambda: f"hint {hints_about(result, function)[0].split()[0]}" in screen()
            )
            (entry,) = re.findall("02 moving [^…]*", screen())
            await pilot.press("t")
            await until(pilot, lambda: "train_epoch: 0 waits" in screen())
            await pilot.press("l")
            await until(pilot, lambda: "train_epoch: 0 waits" not in screen())
            replace(path, written(TRAIN, "return ("))
            await until(pilot, lambda: "SyntaxError: '(' was never closed" in screen())
            assert "happened" not in screen()
            assert entry in screen(), "the list has its width again"
            replace(path, written(TRAIN, "while True:\n        pass"))
            await until(pilot, lambda: "the next save ends it" in screen())
            replace(path, written(TRAIN, "import os\n    os._exit(0)"))
            await until(pilot, lambda: "`train_epoch` ended the process that ran" in screen())
            loop = "    for inputs, targets in loader:\n"
            assert loop in solution(TRAIN)
            replace(path, solution(TRAIN).replace(loop, f"{loop}        print('another batch')\n"))
            await until(pilot, lambda: "✓ 04_modifying_training_loop_gpu is done" in screen())
            assert course.current.stem == "01_checking_device", "the next one that is to do"
            assert "another batch" in text_of(view.aside_panel(course)), (
                "what was printed by the one that is done"
            )
            await pilot.press("t")
            await until(pilot, lambda: "train_epoch:" in screen())
            await pilot.press("q")

    asyncio.run(morning())
    app.thread.join(10)
    assert not app.thread.is_alive()
    again = Course(folder)
    assert (again.current.stem, again.score, again.pending) == ("01_checking_device", (14, 100), {})


def test_line_mode_without_a_terminal(folder: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY / "graders"),
        "PYTHONIOENCODING": "utf-8",
    }
    said = folder.parent / "said.txt"
    with said.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "gpudojo", "watch", "--hints", "1"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def until(text: str) -> None:
        end = time.monotonic() + 120
        while text not in said.read_text(encoding="utf-8"):
            assert running.poll() is None, said.read_text(encoding="utf-8")
            assert time.monotonic() < end, said.read_text(encoding="utf-8")
            time.sleep(0.1)

    try:
        until("to do: `select_device` is still a stub")
        (folder / "own.py").write_text("def best():\n    return 'gpu'\n", encoding="utf-8")
        text = written(DEVICE, "print('hello')\n    return torch.device(own.best())")
        (folder / DEVICE).write_text(
            text.replace("import torch\n", "import torch, own\n", 1), encoding="utf-8"
        )
        until("printed by select_device\n  [scenario ")
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0
    finally:
        with contextlib.suppress(OSError):
            os.killpg(running.pid, signal.SIGKILL)
    whole = said.read_text(encoding="utf-8")
    assert "RuntimeError: Expected one of cpu, cuda" in " ".join(whole.split())
    assert "\x1b" not in whole
    assert not any(line.endswith(" ") for line in whole.splitlines())
    assert max(map(len, whole.splitlines())) <= 80 or str(folder) in max(
        whole.splitlines(), key=len
    )


def test_the_end_of_the_day_is_celebrated(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "exercises" / "day8", tmp_path / "day8")
    course = Course(tmp_path)
    for work in course.works:
        for function in work.exercise.functions:
            work.note_verdict(
                function.name,
                [result_of(work.exercise, function, c, Outcome.PASSED) for c in function.checks],
            )
    shown = text_of(view.fix_panel(course))
    assert "100 of 100 points. Well done!" in shown
    assert "████████████████" in shown


def test_every_page_fits_a_narrow_terminal(folder: Path) -> None:
    course = Course(folder)
    for page in (
        view.fix_panel(course),
        view.aside_panel(course),
        view.lesson_page(course.current, True),
        view.timeline_page(course, 40),
        view.help_page(has_lesson=True),
    ):
        assert max(map(len, text_of(page, 40).splitlines()), default=0) <= 40
    (folder / DEVICE).unlink()
    course.works[0].read_file()
    assert "01_checking_device.py is not in" in " ".join(text_of(view.fix_panel(course)).split())


def test_a_file_that_is_missing_or_broken_has_no_points_and_a_similar_name_is_told(
    folder: Path,
) -> None:
    course = Course(folder)
    work = course.current = course.works[0]
    (function,) = work.exercise.functions
    work.note_verdict(
        function.name,
        [result_of(work.exercise, function, each, Outcome.PASSED) for each in function.checks],
    )
    most = work.count_points().max_points
    assert course.score[0] == work.count_points().points == most > 0
    work.path.write_text("def (", encoding="utf-8")
    work.read_file()
    assert (course.score[0], work.count_points().max_points) == (0, most)
    assert "0/8" in view.list_entry(work, 40).plain
    work.path.rename(folder / "01_checking_devices.py")
    work.read_file()
    assert (course.score[0], work.count_points().max_points) == (0, most)
    assert "did you mean 01_checking_devices.py?" in " ".join(
        text_of(view.fix_panel(course)).split()
    )


def test_a_verdict_is_shown_with_the_text_that_was_graded(folder: Path) -> None:
    """A save that is not graded yet does not put other lines under an older verdict."""
    course = Course(folder)
    work = course.current = course.works[0]
    (function,) = work.exercise.functions
    work.path.write_text(written(DEVICE, "return torch.device('tpu')"), encoding="utf-8")
    course.pending[work.stem] = work.read_file()
    line = (work.text or "").split("\n").index("    return torch.device('tpu')") + 1
    failed = [
        result_of(work.exercise, function, each, Outcome.FAILED, Failed("h", "e", line))
        for each in function.checks
    ]
    work.note_verdict(function.name, failed)
    del course.pending[work.stem]
    shown = " ".join(text_of(view.fix_panel(course)).split())
    assert f"❱ {line} return torch.device('tpu')" in shown
    assert "being graded" not in text_of(view.fix_panel(course))
    work.path.write_text(
        "# another line\n" + written(DEVICE, "x = 1\n    return 3"), encoding="utf-8"
    )
    course.pending[work.stem] = work.read_file()
    shown = " ".join(text_of(view.fix_panel(course)).split())
    assert f"❱ {line} return torch.device('tpu')" in shown
    assert "What you saved is being graded." in shown


@pytest.mark.parametrize("way", [watch_saves, saves_by_polling], ids=["watchfiles", "polling"])
def test_what_is_saved_is_seen_and_first_all_that_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[..., Iterator[set[Path]]]
) -> None:
    monkeypatch.setattr("gpudojo.watch.saves.POLLING_SECONDS", 0.01)
    stop = threading.Event()
    seen = way(folder, stop)
    assert next(seen) == {folder / DEVICE, folder / TRAIN}, "one may have been saved before"
    threading.Timer(0.2, lambda: replace(folder / TRAIN, "x = 1\n")).start()
    assert next(seen) == {folder / TRAIN}
    threading.Timer(0.1, stop.set).start()
    assert list(seen) == []


def test_the_keys_and_the_list_fit_any_width(folder: Path) -> None:
    course = Course(folder)
    for width in (12, 20, 38, 58, 78, 138):
        assert len(view.folded_list(course, width)) <= max(width, 16)
        keys = view.key_line(width, has_lesson=True).plain
        assert len(keys) <= width
        assert "q quit" in keys or width < 14
    assert view.key_line(78, has_lesson=True).plain.startswith("h hint  t timeline  l lesson")
    assert view.key_line(78, has_lesson=False).plain.startswith("h hint  t timeline  n next")


def test_the_lines_around_a_line_are_code_and_long_ones_go_on_to_the_right(folder: Path) -> None:
    text = (
        'def f(x):\n    """Says much.\n\n    In many lines.\n    """\n\n    y = 1\n\n'
        "    return torch.rand(count, 3, size, size, generator=generator).to(device)\n\n\nz = 2\n"
    )
    shown = text_of(view.code_excerpt(text, 9, dark=True), 50).splitlines()
    assert [line.split()[0] for line in shown if re.match(r"[ ❱]+\d", line)] == ["1", "7", "❱"]
    rest = shown[shown.index(next(line for line in shown if "return" in line)) + 1]
    assert rest.index("generator") > shown[-2].index("return")


def test_a_breakpoint_says_where_it_would_stop(folder: Path) -> None:
    course = Course(folder)
    work = course.current = course.works[0]
    work.breakpoint = SkippedBreakpoint("select_device", 12)
    shown = " ".join(text_of(view.fix_panel(course)).split())
    assert "breakpoint() at line 12 stops only under pytest." in shown
