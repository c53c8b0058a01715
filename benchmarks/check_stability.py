"""Does a verdict depend on how busy the machine is?

`python -m benchmarks.check_stability` grades some kept solutions many times, while other processes
keep all processors busy.

The solutions are those of `tests/day8`, some right and some wrong ones of each exercise. Every run
is a class of its own under the same seed, so that status, points and reasons must be equal. The
table has one row for each solution with a run that differs from the first, and what is different.
Exits with 1 if there is one. Linux only.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpudojo.model.results import CheckRow, SubmissionRow
from gpudojo.model.results_file import iterate

from benchmarks.commands import ROOT, grade_command
from benchmarks.tables import Table, benchmark_parser, core_count

SOLUTIONS = ROOT / "tests" / "day8"
SEED = "stability"
BUSY = "while True: pass"


class RowText(NamedTuple):
    """What a run says of one submission, as texts that can be compared."""

    submission: str
    lines: tuple[str, ...]


def write_class(folder: Path, most_of_kind: int) -> int:
    """Write a submission for some solutions of each exercise. Returns how many."""
    written = 0
    for kind in ("right", "wrong"):
        for exercise in sorted((SOLUTIONS / kind).iterdir()):
            solutions = sorted(exercise.glob("*.py"))
            for solution in evenly_chosen(solutions, most_of_kind):
                place = folder / f"{kind}.{exercise.name}.{solution.stem}"
                place.mkdir(parents=True)
                file = place / f"{exercise.name}.py"
                file.write_bytes(solution.read_bytes())
                written += 1
    return written


def evenly_chosen(paths: Sequence[Path], most: int) -> list[Path]:
    """At most so many of the paths, from the first to the last."""
    if len(paths) <= most:
        return list(paths)
    places = [number * len(paths) // most for number in range(most)]
    return [paths[place] for place in places]


@contextlib.contextmanager
def busy_processors(number: int) -> Iterator[None]:
    """Keep so many processors busy during a `with` block."""
    command = [sys.executable, "-c", BUSY]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def grade_once(folder: Path, out: Path) -> dict[str, RowText]:
    """Grade the class, and return what is said of each submission, by its name."""
    out.mkdir()
    command = grade_command(folder, out, SEED)
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    texts = [text_of_row(row) for row in iterate(out / "results.json")]
    return {text.submission: text for text in texts}


def text_of_row(row: SubmissionRow) -> RowText:
    """Status, points and reasons of a submission, a line for each."""
    lines = [f"{row.status} {row.score:g} {row.reason}".rstrip()]
    lines += [f"review: {reason}" for reason in row.needs_human]
    lines += [f"note: {note}" for note in row.notes]
    for exercise in row.exercises:
        lines += [line_of_check(check) for check in exercise.checks]
    return RowText(row.submission, tuple(lines))


def line_of_check(check: CheckRow) -> str:
    """Outcome, points, mistake and line of one check.

    Its message is left out: it may hold a time.
    """
    return f"{check.id} {check.outcome} {check.points:g} {check.misconception} {check.line}"


def table_of_differences(runs: Sequence[dict[str, RowText]]) -> Table:
    """A row for each submission that is not judged the same in all runs."""
    columns = ("solution", "runs that differ", "the first run", "another run")
    title = f"Solutions that are judged differently in {len(runs)} runs on a busy machine"
    table = Table(title, columns, words=columns[2:])
    for name, first in runs[0].items():
        others = [run[name] for run in runs[1:] if run[name] != first]
        if not others:
            continue
        other = others[0]
        only_first = [line for line in first.lines if line not in other.lines]
        only_other = [line for line in other.lines if line not in first.lines]
        table.add(name, str(len(others)), "\n".join(only_first), "\n".join(only_other))
    return table


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how often (20)")
    parser.add_argument(
        "--each", type=int, default=2, help="right and wrong solutions of each exercise (2)"
    )
    parser.add_argument(
        "--busy", type=int, default=core_count(), help="processes that only keep processors busy"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stability-") as name:
        place = Path(name)
        folder = place / "class"
        submissions = write_class(folder, asked.each)
        runs = []
        with busy_processors(asked.busy):
            for number in range(asked.runs):
                texts = grade_once(folder, place / f"run-{number}")
                runs.append(texts)
                print(f"run {number + 1} of {asked.runs}", file=sys.stderr)
    table = table_of_differences(runs)
    table.notes.append(f"{submissions} solutions, {asked.busy} busy processes.")
    table.show(asked.markdown)
    if table.rows:
        sys.exit(1)


if __name__ == "__main__":
    main()
