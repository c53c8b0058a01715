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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.exercise import Exercise
from gpudojo.watch.course import Course, ExerciseWork
from gpudojo.watch.session import Event, Session

from benchmarks.tables import Table, benchmark_parser

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0  # seconds for a process to become ready, or for a verdict


class SaveTimes(NamedTuple):
    """Seconds of one save."""

    until_verdict: float
    since_noticed: float
    own_calls: float  # of the function, in this process


class TimedFunction:
    """A student's function that counts the seconds of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.function(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - began


def seconds_of_own_calls(exercise: Exercise, name: str, path: Path, kind: str) -> float:
    """The seconds that a function itself takes in all calls of its probes."""
    submission = load_submission(path)
    timed = TimedFunction(submission.names[name])
    submission.names[name] = timed
    declared = next(each for each in exercise.functions if each.name == name)
    observe_function(exercise, declared, submission, kind, PUBLIC_SEEDS[0])
    return timed.seconds


def insert_statement(text: str, name: str, number: int) -> str:
    """The text of a file, its function with one statement of this number before its `return`."""
    head, definition, rest = text.partition(f"def {name}(")
    statement = f"    _ = {number}\n"
    body, mark, end = rest.partition("    return")
    return f"{head}{definition}{body}{statement}{mark}{end}"


class WatchedFile:
    """A solved exercise in a folder that a session watches; a context that ends the session."""

    def __init__(self, folder: Path, solution: Path, kind: str) -> None:
        self.path = folder / solution.name
        self.text = solution.read_text(encoding="utf-8")
        self.path.write_text(self.text, encoding="utf-8")
        self.kind = kind
        # When each verdict came, and what it is about.
        self.verdicts: queue.SimpleQueue[tuple[float, ExerciseWork]] = queue.SimpleQueue()
        self.session = Session(Course(folder), self._keep_verdict, kind)
        self.thread = threading.Thread(target=self.session.handle_events)

    def _keep_verdict(self, event: Event, work: ExerciseWork) -> None:
        if event == "verdict":
            self.verdicts.put((time.perf_counter(), work))

    def __enter__(self) -> WatchedFile:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.thread.join()

    def first_work(self) -> ExerciseWork:
        """The exercise, when it has its first verdict."""
        _, work = self.verdicts.get(timeout=PATIENCE)
        return work

    def time_save(self, work: ExerciseWork, number: int) -> SaveTimes:
        """Save the file with one statement more, and wait for the verdict.

        Raises SystemExit if no process becomes ready, or if the exercise is not done.
        """
        self._wait_until_ready()
        name = work.names[0]
        own_calls = seconds_of_own_calls(work.exercise, name, self.path, self.kind)
        began = time.perf_counter()
        self.path.write_text(insert_statement(self.text, name, number), encoding="utf-8")
        ended, _ = self.verdicts.get(timeout=PATIENCE)
        if work.state != "done":
            raise SystemExit(f"{name} is {work.state}: {work.first}")
        return SaveTimes(ended - began, self.session.took, own_calls)

    def _wait_until_ready(self) -> None:
        end = time.perf_counter() + PATIENCE
        while not self.session.ready:
            if time.perf_counter() > end:
                raise SystemExit(f"no process became ready: {self.session.trouble}")
            time.sleep(0.05)


def time_saves(number: str, rounds: int, kind: str) -> tuple[str, list[SaveTimes]]:
    """The name of an exercise's first function, and the times of its saves."""
    references = ROOT / "reference" / "day8"
    solution = next(references.glob(f"{number}_*.py"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "day8").resolve()
        folder.mkdir()
        with WatchedFile(folder, solution, kind) as file:
            work = file.first_work()
            saves = [file.time_save(work, count) for count in range(rounds + 1)]
    return work.names[0], saves[1:]  # without the first, which warms up


def add_saves(table: Table, name: str, saves: list[SaveTimes]) -> None:
    """Add a row with the medians of a function's saves."""
    until_verdict = [save.until_verdict for save in saves]
    since_noticed = [save.since_noticed for save in saves]
    own_calls = [save.own_calls for save in saves]
    more = [save.until_verdict - save.own_calls for save in saves]
    tenths = statistics.quantiles(until_verdict, n=10)
    table.add(
        name,
        _median_text(until_verdict),
        f"{tenths[0]:.3f}–{tenths[-1]:.3f}",
        _median_text(since_noticed),
        _median_text(own_calls),
        _median_text(more),
    )


def _median_text(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3f}"


def main() -> None:
    """Save what the command line asks for, and print the table."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how often each is saved (20)")
    parser.add_argument("--exercises", nargs="+", default=["04"], metavar="NN", help="which (04)")
    parser.add_argument("--bench", default="auto", help="the device (auto)")
    options = parser.parse_args()
    columns = ("seconds", "spread", "since noticed", "its own calls", "more than its own calls")
    table = Table("From a save to the verdict", ("function", *columns))
    spread = "the spread is from the first to the ninth tenth"
    table.notes = [f"Medians of {options.rounds} saves; {spread}."]
    for number in options.exercises:
        name, saves = time_saves(number, options.rounds, options.bench)
        add_saves(table, name, saves)
    table.show(options.markdown)


if __name__ == "__main__":
    main()
