"""How long does a class of 600 take when nothing has to run?

The example class is graded once; its students are copied, with their records, until there are
enough. Then the course file gets other weights, an exercise is dropped, and results are exported:
each command is timed as typed, with the start of Python.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from gpudojo.classes.class_state import StoredSubmission, Student, load_state, save_state
from gpudojo.classes.grading_options import GradingOptions, derive_number
from gpudojo.classes.run_settings import POOL_SIZE
from gpudojo.classes.store import Store, record_key
from gpudojo.submissions.entries import SourceFile, digest_of
from msgspec.structs import replace

from benchmarks.commands import ROOT, dojo_command, grade_command
from benchmarks.tables import Table, benchmark_parser


def write_course(out: Path, points: int, dropped: int = 0) -> Path:
    """Write a course file in which every exercise but one counts so many points."""
    lines = ["[exercises]"]
    for number in range(1, 13):
        if number != dropped:
            lines.append(f"'{number:02}' = {points}")
    path = out.parent / "course.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def copy_students(out: Path, count: int) -> None:
    """Add copies of the students of a class to its state until there are so many."""
    state = load_state(out)
    originals = list(state.students.values())
    students: dict[str, Student] = dict(state.students)
    for number in range(count - len(originals)):
        original = originals[number % len(originals)]
        name = f"student-{number + 100}"
        # Files and records of its own, so that nobody is taken for a copy.
        sent = [
            replace(copy_submission(out, each, number), name=name, content=name)
            for each in original.sent
        ]
        copy = replace(original, name=name, student=name, identifier=None, naming="plain")
        students[f"plain:{name}"] = replace(copy, sent=sent)
    save_state(out, replace(state, students=students))


def copy_submission(out: Path, submission: StoredSubmission, number: int) -> StoredSubmission:
    """Copy the files, record and verdict of a submission under a digest of its own."""
    if not submission.record:
        return submission
    secret = Store(out).secret_path.read_text(encoding="utf-8")
    pool = pool_of(secret, submission.digest)
    # With the same scenarios.
    digests = (
        digest_of([SourceFile(f"{submission.digest}-{number}-{attempt}", b"")])
        for attempt in itertools.count()
    )
    digest = next(each for each in digests if pool_of(secret, each) == pool)
    options = GradingOptions(submissions=(), out=out)
    conditions = options.conditions_of_record(f"{secret}\0{pool}", None)
    record = record_key(digest, *conditions)
    for path in list((out / ".dojo").rglob(f"{submission.record}*")):
        copy_file(path, path.name.replace(submission.record, record), record)
    for path in list((out / ".dojo").rglob(f"{submission.digest}*")):
        copy_file(path, path.name.replace(submission.digest, digest), digest)
    return replace(submission, digest=digest, record=record)


def copy_file(path: Path, name: str, key: str) -> None:
    """Copy a file of the store to the folder of its new key."""
    target = path.parent.with_name(key[:2]) / name
    target.parent.mkdir(exist_ok=True)
    shutil.copy(path, target)


def pool_of(secret: str, digest: str) -> str:
    """The name of the scenarios that files with this digest have."""
    return f"pool {derive_number(secret, digest) % POOL_SIZE}"


def time_command(table: Table, what: str, *words: object) -> None:
    """Run a `dojo` command, and add its seconds to a table. Raises if it fails."""
    began = time.perf_counter()
    before = os.times()
    subprocess.run(dojo_command(*words), cwd=ROOT, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    after = os.times()
    busy = after.children_user + after.children_system
    busy -= before.children_user + before.children_system
    table.add(what, f"{seconds:.2f} s", f"{busy:.2f} s")


def main() -> None:
    """Grade the example class, copy it, and time what an instructor does over a term."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--students", type=int, default=600, help="students of the class (600)")
    parser.add_argument("--folder", type=Path, help="keep the class here")
    options = parser.parse_args()
    table = Table(f"A class of {options.students}", ("what", "seconds", "of processors"))
    with tempfile.TemporaryDirectory() as place:
        out = (options.folder or Path(place)).resolve() / "out"
        out.parent.mkdir(parents=True, exist_ok=True)
        course = write_course(out, 8)
        subprocess.run(
            grade_command(ROOT / "examples" / "class", out, "term", "--course", course, "-q"),
            cwd=ROOT,
            check=True,
        )
        copy_students(out, options.students)
        time_command(table, "first time", "grade", "--out", out, "-q")
        write_course(out, 9)
        time_command(table, "other weights", "grade", "--out", out, "-q")
        write_course(out, 9, dropped=6)
        time_command(table, "exercise dropped", "grade", "--out", out, "-q")
        write_course(out, 9)
        time_command(table, "exercise added", "grade", "--out", out, "-q")
        words = ("override", "student-100", "01", "--points", "3", "--out", out)
        time_command(table, "points by hand", *words)
        time_command(table, "status", "status", out)
        for format_ in ("canvas", "nbgrader", "statistics", "jplag"):
            target = Path(place, format_)
            words = ("export", out, "--to", format_, "--out", target)
            time_command(table, f"export {format_}", *words)
    table.show(options.markdown)


if __name__ == "__main__":
    main()
