"""Is anything lost when a command that writes is killed?

`python -m benchmarks.kill_commands` kills commands on one class at random moments.

A small class is graded once. Then commands that write to it, or beside it, run one after another:
points by hand, lateness, what was given taken back, reviews ticked off, a sheet of marks written
and read, a row removed and taken back, a course file, grading anew, results judged again, exports,
feedback, pages. Each is killed by `kill -9` at a random moment of its run. After each kill every
file has to be whole, and nothing that was known before may be missing: students, attempts, the log
of decisions, the history. Of one command, the log has all that it decided or nothing. Then results
are written once more, and have to say what the log says.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import signal
import subprocess
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.classes.class_opening import load_last_course, open_gradebook
from gpudojo.classes.class_state import load_state
from gpudojo.classes.course_file import load_course
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.overrides import Overrides
from gpudojo.classes.result_writing import write_results
from gpudojo.model.results_file import read

from benchmarks.commands import ROOT, dojo_command

EXERCISE: Final = "01_checking_device.py"
PARTS: Final = (".part", ".pdf.part")
ENDS: Final = {".pdf": b"%%EOF", ".html": b"</html>"}  # of files that are whole
LONGEST: Final = 300.0  # seconds that a command may take in peace
STUDENTS: Final = ("ada", "bo", "cy", "dee")
TO_REVIEW: Final = ("cy", "dee")  # they have an old copy of their file
FORMATS: Final = (
    "autolab",
    "canvas",
    "exercism",
    "github_classroom",
    "gradescope",
    "jplag",
    "junit",
    "nbgrader",
    "prairielearn",
    "statistics",
)
RULES: Final = """
[exercises]
"01" = {points}

[[by_hand]]
name = "report"
points = 10
rubric = [{{ text = "the trace", points = 4 }}, {{ text = "the rest", points = 6 }}]
"""


class Known(NamedTuple):
    """What is known of a class; none of it may get lost."""

    attempts: frozenset[tuple[str, str]]  # each student's key with the digest of a submission
    log: tuple[tuple[str, ...], ...]
    history: tuple[tuple[str, ...], ...]


class Planned(NamedTuple):
    """A command, and how many lines it adds to the log of decisions."""

    words: list[object]
    decisions: int = 0


class KillCommands:
    """Runs commands on one class, kills them, and looks at what is left."""

    def __init__(self, base: Path, dice: random.Random) -> None:
        self.base = base
        self.out = base / "out"
        self.dice = dice
        self.kills: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()  # before the kill
        self.problems: list[str] = []
        self.seconds: dict[str, float] = {}  # of the last run of a command that ended by itself

    def make_class(self) -> None:
        """Hand in, and grade once."""
        for number, name in enumerate(STUDENTS):
            self._hand_in(name, f"# {number}\n")
        for name in TO_REVIEW:
            old = self.base / "class" / name / "old"
            old.mkdir()
            (old / EXERCISE).write_text("def select_device():\n    return None\n", encoding="utf-8")
        subprocess.run([*dojo_command("init", self.base / "class")], cwd=ROOT, check=True)
        self._write_course(4)
        words = ("grade", self.base / "class", "--out", self.out, "--seed", "kill", "-q")
        subprocess.run(dojo_command(*words), cwd=ROOT, check=True)
        # Once in peace, to know how long each takes.
        for name, plan in self.commands().items():
            self._run_and_kill(name, plan().words, after=LONGEST)

    def _hand_in(self, name: str, more: str) -> None:
        """Write a student's file."""
        folder = self.base / "class" / name
        folder.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "reference" / "day8" / EXERCISE).read_text(encoding="utf-8")
        (folder / EXERCISE).write_text(text + more, encoding="utf-8")

    def _write_course(self, points: int) -> None:
        """Write a course file in which one exercise counts so many points."""
        text = RULES.format(points=points)
        (self.base / "class" / "course.toml").write_text(text, encoding="utf-8")

    def commands(self) -> dict[str, Callable[[], Planned]]:
        """By name, what plans a command."""
        every = (
            self._override,
            self._lateness,
            self._undo,
            self._review,
            self._sheet_of_marks,
            self._read_marks,
            self._remove,
            self._init,
            self._export,
            self._feedback,
            self._feedback_in_pdf,
            self._report,
            self._grade_anew,
            self._grade_by_other_rules,
        )
        return {each.__name__.removeprefix("_"): each for each in every}

    def _choose_student(self) -> str:
        """The name of somebody who is in the class."""
        participants = self.open_book().list_class().participants
        return self.dice.choice(participants).name

    def _grade_anew(self) -> Planned:
        """Grade another attempt of somebody."""
        self._hand_in(self.dice.choice(STUDENTS), f"# {self.dice.random()}\n")
        return Planned(["grade", self.base / "class", "--out", self.out, "-q"])

    def _grade_by_other_rules(self) -> Planned:
        """Judge again, with other points."""
        self._write_course(self.dice.randint(1, 90))
        return Planned(["grade", "--out", self.out, "--rejudge", "-q"])

    def _override(self) -> Planned:
        """Give points by hand."""
        self._write_course(90)
        points = f"{self.dice.random():.4f}"
        words = ["override", self._choose_student(), "01", "--points", points]
        return Planned([*words, "--out", self.out], 1)

    def _lateness(self) -> Planned:
        """Say how late somebody was."""
        delay = f"{self.dice.randint(1, 90)}m"
        words = ["override", self._choose_student(), "--late", delay, "--out", self.out]
        return Planned(words, 1)

    def _undo(self) -> Planned:
        """Undo the last command, or give points where that gave nothing."""
        overrides = self.open_book().overrides
        last = overrides.entries_of_last_command()
        if not last:
            return self._override()
        before = overrides.entries_before(last[0].at)
        given_again = [entry for entry in last if entry.key_and_item in before]
        words = ["override", "--undo", "--out", self.out]
        return Planned(words, len(last) + len(given_again))

    def _review(self) -> Planned:
        """Tick off what needs review of somebody, or take that back."""
        book = self.open_book()
        rows = list(book.rows_of(book.list_class().participants))
        row = self.dice.choice([row for row in rows if row.reasons_to_review])
        words = ["review", row.submission, "--out", self.out]
        if row.reviewed:
            return Planned([*words, "--undo"], 1)
        return Planned([*words, "--done", "--comment", "Looked at it."], 1)

    def _sheet_of_marks(self) -> Planned:
        """Write a sheet for what is marked by hand."""
        sheet = self.base / f"sheet{self.dice.randint(0, 9)}.csv"
        sheet.unlink(missing_ok=True)
        return Planned(["marks", "--sheet", sheet, "--out", self.out])

    def _read_marks(self) -> Planned:
        """Read points for a line of the rubric, for everybody."""
        lines = ["student,item,points,comment"]
        participants = self.open_book().list_class().participants
        for each in participants:
            lines.append(f"{each.name},report::1,{4 * self.dice.random():.6f},Seen.")
        marks = self.base / "marks.csv"
        marks.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return Planned(["marks", "--from", marks, "--out", self.out], len(participants))

    def _remove(self) -> Planned:
        """Take somebody out of the class, or back into it."""
        removed = [each.name for each in self.open_book().list_class().removed]
        if removed:
            return Planned(["remove", "--undo", removed[0], "--out", self.out], 1)
        return Planned(["remove", self.dice.choice(STUDENTS), "--out", self.out], 1)

    def _init(self) -> Planned:
        """Begin another course file."""
        folder = self.base / f"new{self.dice.randint(0, 9)}"
        (folder / "course.toml").unlink(missing_ok=True)
        return Planned(["init", folder])

    def _export(self) -> Planned:
        """Export to a format that needs no other file."""
        format_ = self.dice.choice(FORMATS)
        target = self.base / f"to-{format_}"
        return Planned(["export", self.out, "--to", format_, "--out", target])

    def _feedback(self) -> Planned:
        """Write what students get."""
        return Planned(["feedback", self.out, "--out", self.base / "feedback"])

    def _feedback_in_pdf(self) -> Planned:
        """Print what students get."""
        target = self.base / "feedback-pdf"
        return Planned(["feedback", self.out, "--pdf", "--out", target])

    def _report(self) -> Planned:
        """Make all pages."""
        return Planned(["report", self.out, "--similarity"])

    def open_book(self) -> Gradebook:
        """The class as it is on the disk."""
        state = load_state(self.out)
        return open_gradebook(self.out, state, load_last_course(self.out, state))

    def run(self, kills: int) -> None:
        """Kill so many commands, and collect what got lost."""
        names = list(self.commands())
        while self.kills.total() < kills:
            name = self.dice.choice(names)
            before = self.read_known()
            planned = self.commands()[name]()
            was_killed = self._run_and_kill(name, planned.words)
            if was_killed:
                self.kills[name] += 1
            else:
                self.ended[name] += 1
            for problem in self.find_problems(before, planned.decisions):
                self.problems.append(f"{name}: {problem}")

    def _run_and_kill(self, name: str, words: Sequence[object], after: float = 0.0) -> bool:
        """Run a command in a process of its own, and kill it; False if it ended before that.

        It is killed at a random moment of the time that it took before, or after so many seconds.
        """
        process = multiprocessing.get_context("fork").Process(target=run_quietly, args=(words,))
        began = time.monotonic()
        process.start()
        process.join(after or self.dice.uniform(0, 1.1 * self.seconds[name]))
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            return True
        self.seconds[name] = time.monotonic() - began
        if process.exitcode:
            self.problems.append(f"{name}: it ended with {process.exitcode}")
        return process.exitcode == -signal.SIGKILL

    def read_known(self) -> Known:
        """What is known of the class. Raises DojoError where a file is not whole."""
        attempts = set()
        for key, student in load_state(self.out).students.items():
            for submission in student.sent:
                attempts.add((key, submission.digest))
        log = tuple(tuple(entry.as_cells()) for entry in Overrides(self.out).log)
        history = tuple(tuple(line) for line in read_table_or_nothing(self.out / "history.csv"))
        return Known(frozenset(attempts), log, history)

    def find_problems(self, before: Known, decisions: int) -> Iterator[str]:
        """Yield what is torn or lost after a kill of a command that adds so many lines to the log.

        Results are written once more.
        """
        try:
            known = self.read_known()
            read(self.out / "results.json")
            book = self.open_book()
        except Exception as error:  # whatever it is, a file is not whole
            yield f"{type(error).__name__}: {error}"
            return
        if not before.attempts <= known.attempts:
            yield f"attempts are lost: {before.attempts - known.attempts}"
        if known.log[: len(before.log)] != before.log:
            yield "lines of the log are lost"
        new_lines = len(known.log) - len(before.log)
        if new_lines not in (0, decisions):
            yield f"the log has {new_lines} new lines of {decisions}"
        if known.history[: len(before.history)] != before.history:
            yield "lines of the history are lost"
        yield from torn_files(self.base)
        write_results(book)
        published = {
            row.submission: row.final for row in read(self.out / "results.json").submissions
        }
        rows = self.open_book().rows_of(self.open_book().list_class().participants)
        if published != {row.submission: row.final for row in rows}:
            yield "the results are not what the log says"


def run_quietly(words: Sequence[object]) -> None:
    """Run a `dojo` command in this process, which prints nothing and ends with its status."""
    from gpudojo.cli import main

    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.setsid()
    os.chdir(ROOT)
    main([str(word) for word in words])


def read_table_or_nothing(path: Path) -> list[list[str]]:
    """The lines of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, strict=True))


def torn_files(folder: Path) -> Iterator[str]:
    """Yield the names of files that are not whole; a file under way has a name of its own."""
    for path in folder.rglob("*"):
        is_under_way = path.name.startswith(".") and path.name.endswith(PARTS)
        if not path.is_file() or is_under_way:
            continue
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            elif path.suffix == ".csv":
                read_table_or_nothing(path)
            elif path.suffix == ".toml":
                load_course(path)
            elif path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    archive.testzip()
            elif not path.read_bytes().rstrip().endswith(ENDS.get(path.suffix, b"")):
                yield f"{path} is cut off"
        except Exception as error:  # whatever it is, the file is not whole
            yield f"{path}: {error}"


def main() -> None:
    """Grade a class, kill commands on it, and print how many lost something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        loop = KillCommands(Path(place), random.Random(options.seed))
        loop.make_class()
        until = time.monotonic() + 60 * options.minutes
        while loop.kills.total() < options.kills and time.monotonic() < until:
            loop.run(loop.kills.total() + 1)
    for problem in loop.problems:
        print(problem)
    print(f"{loop.kills.total()} kills: {dict(loop.kills)}; ended before: {dict(loop.ended)}")
    print(f"{len(loop.problems)} lost something")
    if loop.problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
