"""Counts the project's files on one submission's way to a verdict, in the grader's process.

`python -m benchmarks.count_files [SUBMISSION] [--only FUNCTION]` grades two submissions with `dojo grade` and notes for
the second which files under `graders/` run code from the moment its evidence arrives (the first bytes that a child
sends) until its row has been made. What happens once per run, such as reading the table of misconceptions, happens
with the first. It prints the files, those of the framework apart from the day's content, and how often control passes
from one folder to another.

Without arguments: the function `train_epoch` of examples/class/student-03-forgetful, which fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gpudojo.classes import class_grading
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.cli import main

ROOT = Path(__file__).resolve().parents[1]
GRADERS = str(ROOT / "graders") + "/"
BEFORE = ROOT / "examples" / "class" / "student-01-solved"


class Counter:
    """The files whose functions were called between two moments."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.changes = 0  # of the folder, from one call to the next
        self._last = ""

    def called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.note(frame.f_code)

    def note(self, code: CodeType) -> None:
        if code.co_filename.startswith(GRADERS) and code.co_name != "<module>":
            file = code.co_filename.removeprefix(GRADERS)
            self.calls[file] = self.calls.get(file, 0) + 1
            folder = file.rpartition("/")[0]
            self.changes += folder != self._last
            self._last = folder

    def begin(self) -> None:
        threading.setprofile(self.called)
        sys.setprofile(self.called)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def count(submission: Path, only: str | None) -> Counter:
    """Grades a submission after another one, and counts from the arrival of its evidence until its row is made."""
    found = Counter()
    digests = []
    heard = SubmissionRun.receive
    tell = class_grading.ClassGrading._report_verdict

    def first_heard(self: SubmissionRun, data: bytes) -> bool:
        if self.record.digest not in ("reference", *digests):
            digests.append(self.record.digest)
            if len(digests) == 2:
                found.note(heard.__code__)
                found.begin()
        return heard(self, data)

    def told(self: class_grading.ClassGrading, *arguments: Any, **named: Any) -> None:
        tell(self, *arguments, **named)
        found.end()

    SubmissionRun.receive, class_grading.ClassGrading._report_verdict = first_heard, told  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as out:
        words = [
            "grade",
            str(BEFORE),
            str(submission),
            "--out",
            out,
            "--jobs",
            "1",
            "--quiet",
            "--seed",
            "count",
        ]
        main([*words, *(["--only", only] if only else [])], standalone_mode=False)
    return found


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "submission", nargs="?", type=Path, default=BEFORE.with_name("student-03-forgetful")
    )
    parser.add_argument(
        "--only", default="train_epoch", help="grade this function only; '' for all"
    )
    asked = parser.parse_args()
    found = count(asked.submission, asked.only)
    content = [file for file in found.calls if file.startswith("gpudojo/days/")]
    for file, calls in sorted(found.calls.items(), key=lambda item: (item[0] in content, item[0])):
        print(f"{calls:7}  {file}")
    print(
        f"{len(found.calls) - len(content)} files of the framework, {len(content)} of the day's content;",
        end=" ",
    )
    print(f"the folder changes {found.changes} times")


if __name__ == "__main__":
    run()
