"""Does everything work on this machine's GPU? Runs all that needs a real one, and prints one table.

    python -m benchmarks.check_gpu [--markdown] [PART ...]

Exit status: 0 if all parts passed, 1 if one failed, 2 if torch finds no GPU here. Every part has a
time limit: those that are asked for share ten minutes. `make gpu PARTS="class watch"`
types the same. Which GPUs are visible (CUDA_VISIBLE_DEVICES) is set by each part for itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.authoring import sample_class
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import iterate

from benchmarks.bench_cuda import differences_of_rows
from benchmarks.commands import ROOT, dojo_command, grade_command, start_command
from benchmarks.tables import Table, benchmark_parser

DAY: Final = "day8"
BENCH = "cuda"  # tests, which have no GPU, set "virtual"
STUDENTS = 10
SEED: Final = "a secret of this check"
WATCHED: Final = "02_moving_model_to_device.py"
NO_GPU: Final = 2  # the exit status where there is none
UNSET: Final = None  # CUDA_VISIBLE_DEVICES is not set at all
VISIBLE = (UNSET, "0")  # what CUDA_VISIBLE_DEVICES is tried as, one after the other
ALL_SECONDS: Final = 560.0  # for all parts that are asked for
ENDING_SECONDS: Final = 5.0  # for a command whose time is over
SHOWN_LINES: Final = 12  # of what a failed part printed
FIND_GPU: Final = """
import sys, torch
if not torch.cuda.is_available():
    sys.exit("torch finds no GPU")
print(torch.cuda.get_device_name())
"""


class Outcome(NamedTuple):
    """How many of a part's tries passed, and what there is to say about the others."""

    passed: int
    total: int
    notes: list[str]

    @property
    def ok(self) -> bool:
        return self.passed == self.total > 0

    def join_with(self, other: Outcome) -> Outcome:
        """Both together."""
        passed = self.passed + other.passed
        total = self.total + other.total
        return Outcome(passed, total, [*self.notes, *other.notes])


class Part(NamedTuple):
    """A part of the check, that can be asked for by its name."""

    name: str
    about: str
    seconds: float  # at most, if all parts are asked for
    run: Callable[[Deadline], Outcome]


class Deadline:
    """The end of a part's time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that are left, never none."""
        return max(1.0, self._end - time.monotonic())

    def is_over(self) -> bool:
        return time.monotonic() > self._end


class Finished(NamedTuple):
    """A command that has ended."""

    code: int | None  # None where it ran out of time
    output: str  # of both streams

    def last_lines(self) -> list[str]:
        return self.output.strip().splitlines()[-SHOWN_LINES:]


def environment_with(visible: str | None, **more: str) -> dict[str, str]:
    """Our environment with these GPUs visible; UNSET leaves the choice to CUDA."""
    environment = {**os.environ, **more, "PYTHONUNBUFFERED": "1"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return environment


def run_command(command: list[str], deadline: Deadline, environment: dict[str, str]) -> Finished:
    """Run a command in the repository's folder. It is killed when the part's time is over."""
    process = start_command(command, ROOT, environment, own_session=True)
    try:
        output, _ = process.communicate(timeout=deadline.left())
    except subprocess.TimeoutExpired:
        output = _end_process(process)
        return Finished(None, f"{output.rstrip()}\nit had not ended after {deadline.seconds:.0f} s")
    return Finished(process.returncode, output)


def _end_process(process: subprocess.Popen[str]) -> str:
    """End a process with all that it has started. Returns what it printed.

    At first as Ctrl-C would: then pytest still reports what it has done so far.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=ENDING_SECONDS)
    _kill_with_children(process)
    output, _ = process.communicate()
    return output


def _kill_with_children(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads a session of its own, and all that it has started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# Tests


def run_tests(deadline: Deadline, words: list[str], visible: str | None, **more: str) -> Outcome:
    """Run pytest on a GPU. Skipped tests count for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", *words]
        finished = run_command(command, deadline, environment_with(visible, **more))
        if not report.exists():  # it was killed, or could not begin
            return Outcome(0, 1, finished.last_lines())
        suites = ElementTree.parse(report).getroot().iter("testsuite")
        return _outcome_of_suites(list(suites), finished)


def _count_in(suite: ElementTree.Element, name: str) -> int:
    """A count that a suite of a JUnit report has, such as its "tests"; 0 if it does not."""
    return int(suite.get(name, 0))


def _outcome_of_suites(suites: list[ElementTree.Element], finished: Finished) -> Outcome:
    """What pytest's report in the format of JUnit says."""
    total = 0
    failed = 0
    for suite in suites:
        total += _count_in(suite, "tests") - _count_in(suite, "skipped")
        failed += _count_in(suite, "failures") + _count_in(suite, "errors")
    if finished.code is None:
        total += 1  # at least one more has not been run
        failed += 1
    notes = [] if finished.code == 0 else finished.last_lines()
    return Outcome(total - failed, total, notes)


def words_for_workers() -> list[str]:
    """Options that let pytest use the processors, if xdist is installed."""
    if importlib.util.find_spec("xdist") is None:
        return []
    processors = len(os.sched_getaffinity(0))
    workers = max(1, min(12, processors - 2))
    return ["-n", str(workers), "--dist", "worksteal"]


def check_recorder(deadline: Deadline) -> Outcome:
    """The recorder for real devices."""
    return run_tests(deadline, ["tests/virtual_cuda/test_real.py"], "0")


def check_children(deadline: Deadline) -> Outcome:
    """Limits and lasting errors of children that use the GPU, each with a neighbour."""
    every = ["-m", "slow or not slow"]
    return run_tests(deadline, ["tests/gpudojo/classes/test_cuda.py", *every], "0")


def check_exercises(deadline: Deadline) -> Outcome:
    """The reference passes every check with pytest, however GPUs are made visible."""
    words = [f"reference/{DAY}", "--bench", BENCH]
    outcome = Outcome(0, 0, [])
    for visible in VISIBLE:
        outcome = outcome.join_with(run_tests(deadline, words, visible))
    return outcome


def check_solutions(deadline: Deadline) -> Outcome:
    """Every kept solution, right or wrong, has the verdict that it has on the virtual device."""
    words = [f"tests/{DAY}/test_solutions.py", "-m", "slow or not slow", *words_for_workers()]
    return run_tests(deadline, words, "0", DOJO_BENCH=BENCH)


# A class


def check_class(deadline: Deadline) -> Outcome:
    """A class has the same verdicts as on the virtual device, however GPUs are made visible."""
    with tempfile.TemporaryDirectory() as folder:
        class_folder = Path(folder) / "class"
        class_folder.mkdir()
        corpus = sample_class.read_corpus(ROOT, DAY)
        for submission in sample_class.sample_submissions(corpus, STUDENTS, 8, hostile=0.0):
            sample_class.hand_in(submission, class_folder)
        # The virtual device first: the other two are compared with it.
        out = Path(folder) / "virtual"
        expected, failure = _grade(class_folder, out, "virtual", "", deadline)
        if failure:
            return Outcome(0, STUDENTS, failure)
        outcome = Outcome(0, 0, [])
        for number, visible in enumerate(VISIBLE):
            out = Path(folder) / f"cuda-{number}"
            rows, failure = _grade(class_folder, out, BENCH, visible, deadline)
            outcome = outcome.join_with(_compare_rows(expected, rows, failure))
        return outcome


def _grade(
    class_folder: Path, out: Path, bench: str, visible: str | None, deadline: Deadline
) -> tuple[dict[str, SubmissionRow], list[str]]:
    """Grade a class. Returns its rows by name; and what it printed, if it failed."""
    command = grade_command(class_folder, out, SEED, "-q", "--bench", bench)
    finished = run_command(command, deadline, environment_with(visible))
    if finished.code != 0:
        return {}, [f"dojo grade --bench {bench}:", *finished.last_lines()]
    rows = iterate(out / "results.json")
    return {row.submission: row for row in rows}, []


def _compare_rows(
    expected: dict[str, SubmissionRow], rows: dict[str, SubmissionRow], failure: list[str]
) -> Outcome:
    """How many submissions have the same verdicts on both devices, and what differs."""
    if failure:
        return Outcome(0, len(expected), failure)
    passed = 0
    notes = []
    for name, row in expected.items():
        differences, _ = differences_of_rows(row, rows[name])
        if differences:
            notes.append(f"{name} (virtual | cuda): {'; '.join(differences)}")
        else:
            passed += 1
    return Outcome(passed, len(expected), notes)


# One save


def check_watch(deadline: Deadline) -> Outcome:
    """`dojo watch` grades a file that is saved, however GPUs are made visible."""
    outcome = Outcome(0, 0, [])
    for visible in VISIBLE:
        outcome = outcome.join_with(_watch_one_save(visible, deadline))
    return outcome


def _watch_one_save(visible: str | None, deadline: Deadline) -> Outcome:
    """Watch a folder with a stub, save the solution, and wait for its verdict."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        watched = Path(folder) / "exercises"
        watched.mkdir()
        shutil.copy(ROOT / "exercises" / DAY / WATCHED, watched)
        with log.open("wb") as file:
            process = subprocess.Popen(
                dojo_command("watch", "--plain", "--bench", BENCH, watched),
                env=environment_with(visible),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                saw_stub = _wait_for_text(log, "is still a stub", process, deadline)
                if saw_stub:
                    solution = (ROOT / "reference" / DAY / WATCHED).read_text(encoding="utf-8")
                    (watched / WATCHED).write_text(solution, encoding="utf-8")
                passed = saw_stub and _wait_for_text(log, "All checks pass.", process, deadline)
            finally:
                _kill_with_children(process)
                process.wait()
        output = log.read_text(encoding="utf-8", errors="replace")
        if passed:
            return Outcome(1, 1, [])
        return Outcome(0, 1, Finished(None, output).last_lines())


def _wait_for_text(
    log: Path, text: str, process: subprocess.Popen[str], deadline: Deadline
) -> bool:
    """Wait until a log has this text. Returns False where the process or the time ends first."""
    while not deadline.is_over():
        has_ended = process.poll() is not None
        if text in log.read_text(encoding="utf-8", errors="replace"):
            return True
        if has_ended:
            return False
        time.sleep(0.1)
    return False


# Without a visible GPU


def check_hidden(deadline: Deadline) -> Outcome:
    """With CUDA_VISIBLE_DEVICES="" every command says in one sentence that there is no GPU."""
    outcome = Outcome(0, 0, [])
    exercises = Path("exercises") / DAY
    with tempfile.TemporaryDirectory() as folder:
        grade = grade_command(Path("examples/class"), Path(folder), SEED, "--bench", "cuda")
        watch = dojo_command("watch", "--plain", "--bench", "cuda", exercises)
        pytest = [sys.executable, "-m", "pytest", str(exercises / WATCHED), "--bench", "cuda"]
        for command in (grade, watch, pytest):
            finished = run_command(command, deadline, environment_with(""))
            outcome = outcome.join_with(_outcome_of_refusal(command, finished))
    return outcome


def _outcome_of_refusal(command: list[str], finished: Finished) -> Outcome:
    """Passed if a command ended with an error that is a sentence about the missing GPU."""
    says_why = "--bench cuda" in finished.output and "this machine has n" in finished.output
    is_refusal = finished.code not in (0, None) and says_why
    if is_refusal and "Traceback" not in finished.output:
        return Outcome(1, 1, [])
    started = " ".join(command[1:4])
    return Outcome(0, 1, [started, *finished.last_lines()])


# In the order in which they run.
PARTS: Final = (
    Part("recorder", "tests of the recorder for real devices", 50, check_recorder),
    Part("exercises", "`pytest reference/day8 --bench cuda`", 90, check_exercises),
    Part("class", "`dojo grade --bench cuda`, next to the virtual device", 100, check_class),
    Part("watch", "`dojo watch --bench cuda`, one save", 50, check_watch),
    Part("hidden", "the same commands with no GPU visible", 40, check_hidden),
    Part("children", "tests of children on the GPU", 100, check_children),
    Part("solutions", "every kept solution, `DOJO_BENCH=cuda`", 160, check_solutions),
)


def find_gpu() -> Finished:
    """Ask torch for its GPU, in another process: this one must not start CUDA."""
    command = [sys.executable, "-c", FIND_GPU]
    return run_command(command, Deadline(60), environment_with(UNSET))


def time_limits(names: list[str]) -> dict[Part, float]:
    """The parts of these names with the seconds of each: all together have ALL_SECONDS."""
    asked = [part for part in PARTS if part.name in names]
    factor = ALL_SECONDS / sum(part.seconds for part in asked)
    return {part: part.seconds * factor for part in asked}


def run_parts(names: list[str], gpu: str, markdown: bool) -> bool:
    """Run these parts, print their table, and return whether all have passed."""
    columns = ("part", "what it runs", "passed", "seconds")
    table = Table(f"On an {gpu}", columns, words=("what it runs",))
    notes: list[str] = []
    all_passed = True
    for part, seconds in time_limits(names).items():
        print(f"{part.name}: at most {seconds:.0f} s", file=sys.stderr, flush=True)
        began = time.perf_counter()
        outcome = part.run(Deadline(seconds))
        took = time.perf_counter() - began
        passed = f"{outcome.passed} of {outcome.total}"
        table.add(part.name, part.about, passed, f"{took:.0f}")
        if not outcome.ok:
            all_passed = False
            notes.append(f"{part.name} failed:")
            notes += [f"    {line}" for line in outcome.notes]
    table.show(markdown)
    for line in notes:
        print(line)
    return all_passed


def main() -> None:
    """Run the parts that were asked for, and end with the exit status that the module names."""
    names = [part.name for part in PARTS]
    parser = benchmark_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}")
    options = parser.parse_args()
    asked = options.parts or names
    unknown = sorted(set(asked) - set(names))
    if unknown:
        wrong = ", ".join(unknown)
        parser.error(f"no part is called {wrong}; there are {', '.join(names)}")
    found = find_gpu()
    if found.code != 0:
        print("There is no GPU here that torch can use, so nothing was checked.")
        sys.exit(NO_GPU)
    gpu = found.output.strip().splitlines()[-1]
    sys.exit(0 if run_parts(asked, gpu, options.markdown) else 1)


if __name__ == "__main__":
    main()
