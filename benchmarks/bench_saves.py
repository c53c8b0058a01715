"""How long from a save to its verdict in `dojo watch`, if a file is saved every second?

A solved exercise is saved every second for a minute, each time with another statement in its
function, in a folder that a real session watches, whether or not a process is ready: as by an
editor that saves by itself. The table says how many saves got a verdict of their own before the
next, how long a verdict let wait, and how long the last save's did. Runs on every system.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from gpudojo.watch.course import ExerciseWork

from benchmarks.bench_watch import PATIENCE, ROOT, WatchedFile, insert_statement
from benchmarks.tables import Table, benchmark_parser

TICK = 0.01  # seconds between two looks at the verdicts


class Burst(NamedTuple):
    """What became of many saves of one file."""

    saves: int
    judged: list[float]  # seconds from a save to its verdict, of those judged before the next
    last: float  # seconds from the last save to its verdict


def statement_judged(work: ExerciseWork, name: str) -> int:
    """The number in the statement of the text that the newest verdict is about; -1 for none."""
    _, found, rest = work.about.get(name, "").partition("    _ = ")
    if not found:
        return -1
    return int(rest.partition("\n")[0])


def wait_for_verdict(work: ExerciseWork, name: str, number: int, seconds: float) -> float | None:
    """The seconds until the text with this number is judged; None where that takes longer.

    Returns after `seconds` in any case. Raises SystemExit if the verdict is not that all is done.
    """
    began = time.perf_counter()
    judged = None
    while time.perf_counter() - began < seconds:
        if judged is None and statement_judged(work, name) == number:
            judged = time.perf_counter() - began
            if work.state != "done":
                raise SystemExit(f"{name} is {work.state}: {work.first}")
        time.sleep(TICK)
    return judged


def save_often(number: str, saves: int, pause: float, kind: str) -> tuple[str, Burst]:
    """Save an exercise so often, with a pause after each; its first function, and what came."""
    solution = next((ROOT / "reference" / "day8").glob(f"{number}_*.py"))
    judged = []
    last = PATIENCE
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "day8").resolve()
        folder.mkdir()
        with WatchedFile(folder, solution, kind) as file:
            work = file.first_work()
            name = work.names[0]
            for count in range(saves):
                file.path.write_text(insert_statement(file.text, name, count), encoding="utf-8")
                seconds = wait_for_verdict(work, name, count, pause)
                if seconds is not None:
                    judged.append(seconds)
            if seconds is None:
                began = time.perf_counter()
                while statement_judged(work, name) != saves - 1:
                    if time.perf_counter() - began > PATIENCE:
                        raise SystemExit(f"no verdict on the last save: {file.session.trouble}")
                    time.sleep(TICK)
                seconds = pause + time.perf_counter() - began
            last = seconds
    return name, Burst(saves, judged, last)


def main() -> None:
    """Save what the command line asks for, and print the table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--saves", type=int, default=60, help="how often each is saved (60)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between saves (1)")
    parser.add_argument("--exercises", nargs="+", default=["04"], metavar="NN", help="which (04)")
    parser.add_argument("--bench", default="auto", help="the device (auto)")
    options = parser.parse_args()
    columns = ("saves", "judged before the next", "median seconds", "longest", "after the last")
    title = f"From a save to its verdict, with a save every {options.pause:g} s"
    table = Table(title, ("function", *columns))
    for number in options.exercises:
        name, burst = save_often(number, options.saves, options.pause, options.bench)
        waits = sorted(burst.judged) or [PATIENCE]
        table.add(
            name,
            str(burst.saves),
            str(len(burst.judged)),
            f"{waits[len(waits) // 2]:.3f}",
            f"{waits[-1]:.3f}",
            f"{burst.last:.3f}",
        )
    table.show(options.markdown)


if __name__ == "__main__":
    main()
