"""How long from a save to the verdict in `dojo watch`, next to the function's own calls?

A solved exercise is saved again and again, each time with one statement more in its function, in a
folder that a real session watches. A save is made when the next process is ready, as after the
seconds in which a student types. Between two saves the same function is called in this process by
the same probes, and only the time inside it is counted. Runs on every system.
"""

from __future__ import annotations

import functools
import queue
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.exercise import Exercise
from gpudojo.watch.course import Course, ExerciseWork
from gpudojo.watch.session import Event, Session

from benchmarks.tables import Table, benchmark_parser

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0  # seconds for a process to become ready, or for a verdict


def seconds_of_own_calls(exercise: Exercise, name: str, path: Path, kind: str) -> float:
    """The seconds that a function itself takes in all calls of its probes."""
    submission = load_submission(path)
    took = 0.0
    inner = submission.names[name]

    @functools.wraps(inner)
    def timed(*arguments: Any, **named: Any) -> Any:
        nonlocal took
        began = time.perf_counter()
        try:
            return inner(*arguments, **named)
        finally:
            took += time.perf_counter() - began

    submission.names[name] = timed
    function = next(each for each in exercise.functions if each.name == name)
    observe_function(exercise, function, submission, kind, PUBLIC_SEEDS[0])
    return took


def with_statement(text: str, name: str, number: int) -> str:
    """The same file, its function with one statement of this number more before its `return`."""
    head, mark, rest = text.partition(f"def {name}(")
    lines = rest.split("\n")
    place = next(place for place, line in enumerate(lines) if line.startswith("    return"))
    return head + mark + "\n".join([*lines[:place], f"    _ = {number}", *lines[place:]])


def time_saves(
    number: str, rounds: int, kind: str
) -> tuple[str, list[float], list[float], list[float]]:
    """A function's name.

    Seconds from save to verdict, those since the save was noticed, and those of its own calls.
    """
    saved = []
    noticed = []
    own = []
    verdicts: queue.SimpleQueue[tuple[float, ExerciseWork]] = queue.SimpleQueue()

    def show(event: Event, work: ExerciseWork) -> None:
        if event == "verdict":
            verdicts.put((time.perf_counter(), work))

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "day8").resolve()
        folder.mkdir()
        solution = next((ROOT / "reference" / "day8").glob(f"{number}_*.py"))
        path = folder / solution.name
        text = solution.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        course = Course(folder)
        session = Session(course, show, kind)
        thread = threading.Thread(target=session.handle_events)
        thread.start()
        try:
            work = verdicts.get(timeout=PATIENCE)[1]
            name = work.names[0]
            for count in range(rounds + 1):
                end = time.perf_counter() + PATIENCE
                while not session.ready:
                    if time.perf_counter() > end:
                        raise SystemExit(f"no process became ready: {session.trouble}")
                    time.sleep(0.05)
                own.append(seconds_of_own_calls(work.exercise, name, path, kind))
                began = time.perf_counter()
                path.write_text(with_statement(text, name, count), encoding="utf-8")
                ended, _ = verdicts.get(timeout=PATIENCE)
                saved.append(ended - began)
                noticed.append(session.took)
                if work.state != "done":
                    raise SystemExit(f"{name} is {work.state}: {work.first}")
        finally:
            session.close()
            thread.join()
    return name, saved[1:], noticed[1:], own[1:]  # without the first, which warms up


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how often each is saved (20)")
    parser.add_argument("--exercises", nargs="+", default=["04"], metavar="NN", help="which (04)")
    parser.add_argument("--bench", default="auto", help="the device (auto)")
    asked = parser.parse_args()
    made = Table(
        "From a save to the verdict",
        (
            "function",
            "seconds",
            "spread",
            "since noticed",
            "its own calls",
            "more than its own calls",
        ),
        notes=[
            f"Medians of {asked.rounds} saves; the spread is from the first to the ninth tenth."
        ],
    )
    for number in asked.exercises:
        name, saved, noticed, own = time_saves(number, asked.rounds, asked.bench)
        tenths = statistics.quantiles(saved, n=10)
        middle = [statistics.median(each) for each in (saved, noticed, own)]
        more = statistics.median(a - b for a, b in zip(saved, own, strict=True))
        cells = (
            f"{middle[0]:.3f}",
            f"{tenths[0]:.3f}–{tenths[-1]:.3f}",
            f"{middle[1]:.3f}",
            f"{middle[2]:.3f}",
        )
        made.add(name, *cells, f"{more:.3f}")
    made.show(asked.markdown)


if __name__ == "__main__":
    main()
