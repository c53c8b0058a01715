"""A process that has torch, the device and the exercise loaded, and grades at once.

`Standby` starts it and talks to it; `python -m gpudojo.watch.standby STEM PATH DEVICE SEED` is the
process itself. It answers one job after the other. Which process gets a job is for the session to
decide: what student code leaves behind in a process may change later verdicts there. It works
alike on every system, as nothing is forked.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
from virtual_cuda.ledger import Timeline

from gpudojo.grading.limits import DEFAULT_SECONDS, Limits
from gpudojo.model.catalogue import every_exercise
from gpudojo.model.evidence import Evidence, Raised
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult

if TYPE_CHECKING:
    from gpudojo.grading.references import Reference

OUTPUT_CHARACTERS: Final = 100_000  # of output that are kept of each function
STDERR_BYTES: Final = 4_000  # the end of what the process wrote to stderr
FRAME_BYTES: Final = 1 << 26  # the longest frame


class StandbyJob(msgspec.Struct, frozen=True):
    """Functions of one file to grade, in this order."""

    stem: str
    path: str
    functions: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Everything is loaded. A job would be graded at once."""


class StandbyResult(msgspec.Struct, frozen=True, tag=True):
    """The verdict on one function.

    `stopped` is the error that ended its file after the function was defined, or of a file in which
    it is still a stub; `breakpoint` the line of the first breakpoint that was skipped.
    """

    stem: str
    function: str
    results: list[CheckResult]
    printed: str = ""
    stopped: Raised | None = None
    breakpoint: int | None = None


class DrawnTimelines(msgspec.Struct, frozen=True, tag=True):
    """What the busiest call of a function did, and the same call of the reference."""

    stem: str
    function: str
    yours: Timeline
    theirs: Timeline | None


class JobDone(msgspec.Struct, frozen=True, tag=True):
    """All functions of a job are graded. Another job would be graded at once."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The process has ended. `said` is the end of what it wrote to stderr."""

    code: int
    said: str = ""


Frame = Ready | StandbyResult | DrawnTimelines | JobDone | Ended


def _send_frame(stream: IO[bytes], content: object) -> None:
    """Write a frame: the size of what follows in four bytes, then the content as MessagePack.

    Raises OSError or ValueError where nobody reads the stream any more.
    """
    data = msgspec.msgpack.encode(content)
    head = len(data).to_bytes(4, "big")
    stream.write(head + data)
    stream.flush()


def _receive_frame(stream: IO[bytes]) -> bytes | None:
    """Read the content of the next frame. Returns None if there is no whole one any more.

    Raises OSError where the stream cannot be read.
    """
    head = stream.read(4)
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > FRAME_BYTES:
        return None
    data = stream.read(size)
    if len(data) < size:
        return None
    return data


class Standby:
    """A process that waits for jobs, with everything loaded, to grade them at once.

    `tell` is called with this object and each frame, in another thread; the last one is `Ended`.
    """

    def __init__(
        self, stem: str, path: Path, kind: str, seed: int, tell: Callable[[Standby, Frame], None]
    ) -> None:
        """Start the process, which gets ready for the exercise of this stem at once.

        `path` is that of the student's file; `kind` of device and `seed` go to the process. Two
        threads read what it writes: `tell` is called with this object and each frame. Raises
        OSError where it cannot be started.
        """
        self.ready = False
        self.graded: set[str] = set()  # the stems of the files that it was given
        self._tell = tell
        # -P: no module of the student's folder.
        command = [sys.executable, "-P", "-m", __spec__.name]
        command += [stem, str(path), kind, str(seed)]
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment_of_process(),
            start_new_session=True,  # the user's Ctrl-C is for the one who asks
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._stderr = b""
        self._stderr_reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._frame_reader = threading.Thread(target=self._read_frames, daemon=True)
        self._stderr_reader.start()
        self._frame_reader.start()

    def send_job(self, job: StandbyJob) -> None:
        """Send a job, and note its file in `graded`. Raises nothing."""
        assert self.process.stdin is not None
        self.graded.add(job.stem)
        with contextlib.suppress(OSError, ValueError):  # it has died, and `Ended` says so
            _send_frame(self.process.stdin, job)

    def kill(self) -> None:
        """End the process, without waiting for its end."""
        self.process.kill()

    def close(self) -> None:
        """End the process, and wait until it is gone."""
        self.kill()
        self._frame_reader.join()

    def _read_stderr(self) -> None:
        """Keep the end of what the process writes to stderr, until it is closed."""
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            while True:
                data = stream.read1(STDERR_BYTES)  # type: ignore[attr-defined]
                if not data:
                    return
                self._stderr = (self._stderr + data)[-STDERR_BYTES:]

    def _read_frames(self) -> None:
        """Pass on all frames to `tell`, until the process has ended: the last one says that.

        Sets `ready` when the process is.
        """
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        decoder = msgspec.msgpack.Decoder(Frame)
        with self.process.stdout as stream:
            while True:
                data = _receive_frame(stream)
                if data is None:
                    break
                frame: Frame = decoder.decode(data)
                if isinstance(frame, Ready):
                    self.ready = True
                self._tell(self, frame)
        code = self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._stderr_reader.join(1)  # something that student code has started may still hold it
        said = self._stderr.decode(errors="replace")
        self._tell(self, Ended(code, said))


def _environment_of_process() -> dict[str, str]:
    """The environment of the process: it finds this package, whatever its working folder is."""
    path = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH", "")
    if before:
        path += f"{os.pathsep}{before}"
    environment = dict(os.environ)
    environment["PYTHONPATH"] = path
    environment["PYTHONIOENCODING"] = "utf-8"
    return environment


# In the process


class PreparedReference:
    """A reference whose evidence and timelines of one exercise were made beforehand."""

    def __init__(self, reference: Reference, exercise: Exercise, kind: str, seed: int) -> None:
        """Run the reference on a device of this kind, and keep its evidence and timelines.

        Raises DojoError where that fails, and OSError if the solution's file cannot be read.
        """
        from gpudojo.grading.watching import EveryCall

        self.reference = reference
        self._evidence: dict[str, Evidence] = {}  # by function
        self._timelines: dict[str, list[Timeline]] = {}
        for function in exercise.functions:
            calls = EveryCall(function.name)
            watched = calls.watch_function(function)
            evidence = reference.evidence_of(exercise, watched, kind, seed)
            timelines = reference.timelines_of(exercise, function)
            self._evidence[function.name] = evidence
            self._timelines[function.name] = timelines or calls.timelines

    def evidence_of(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        """The evidence that was made for the function. Raises KeyError for another exercise's."""
        return self._evidence[function.name]

    def signature_of(self, exercise: Exercise, function: Function) -> str:
        """The signature of the reference's function."""
        return self.reference.signature_of(exercise, function)

    def timelines_of(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """The timelines of the reference's calls."""
        return self._timelines[function.name]


def main() -> None:
    """Be the process: get ready, and answer jobs until the one that asks is gone.

    Its arguments are a stem, a path, a kind of device and a seed. Standard input and output are
    taken away from student code: jobs come by one, answers go by the other. Does not return. An
    error before the first job, such as BadDay or one of the device, ends the process with its
    traceback.
    """
    stem = sys.argv[1]
    path = Path(sys.argv[2])
    kind = sys.argv[3]
    seed = int(sys.argv[4])
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # `input()` must not read jobs, and `print` must not write answers.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    exercises = {exercise.stem: exercise for _, exercise in every_exercise()}
    _exercise_device(kind)
    references = _prepare_reference(exercises[stem], path, kind, seed)
    jobs: queue.SimpleQueue[StandbyJob] = queue.SimpleQueue()
    threading.Thread(target=_receive_jobs, args=(requests, jobs), daemon=True).start()
    _send_frame(answers, Ready())
    while True:
        job = jobs.get()
        _grade_job(job, exercises[job.stem], kind, seed, references, answers)
        _send_frame(answers, JobDone())


def _receive_jobs(requests: IO[bytes], jobs: queue.SimpleQueue[StandbyJob]) -> None:
    """Put jobs into the queue as they come, and end this process when nobody asks any more."""
    while True:
        data = _receive_frame(requests)
        if data is None:
            os._exit(0)  # whatever student code has left behind to be done at the end
        jobs.put(msgspec.msgpack.decode(data, type=StandbyJob))


def _exercise_device(kind: str) -> None:
    """Train a little on a device of this kind: what is done for the first time takes long.

    Raises a DojoError where the device cannot be opened.
    """
    import torch
    import virtual_cuda
    from torch import nn

    importlib.import_module("gpudojo.grading.observe")
    with virtual_cuda.open_device(kind) as opened:  # type: ignore[arg-type]
        device = opened.device
        layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)]
        model = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        pictures = torch.ones(4, 1, 4, 4)
        labels = torch.zeros(4, dtype=torch.long)
        dataset = torch.utils.data.TensorDataset(pictures, labels)
        loader = torch.utils.data.DataLoader(dataset, 2)
        for inputs, targets in loader:
            scores = model(inputs.to(device))
            loss = nn.functional.cross_entropy(scores, targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        with torch.no_grad():
            model.eval()
            scores = model(pictures.to(device))
            scores.argmax(1).cpu()


def _prepare_reference(
    exercise: Exercise, path: Path, kind: str, seed: int
) -> dict[str, Reference]:
    """The prepared reference of an exercise, by its stem. Empty if it cannot be run.

    `path` is that of the student's file, by which the reference is found. It is run here, on a
    device of this kind. Raises OSError if the solution's file cannot be read.
    """
    from gpudojo.grading.references import reference_for
    from gpudojo.model.errors import DojoError

    try:
        reference = reference_for(path, exercise)
        return {exercise.stem: PreparedReference(reference, exercise, kind, seed)}
    except DojoError:
        return {}  # it is met again, and told, when a function is graded


def _grade_job(
    job: StandbyJob,
    exercise: Exercise,
    kind: str,
    seed: int,
    references: dict[str, Reference],
    answers: IO[bytes],
) -> None:
    """Grade the functions of a job. Sends each verdict to `answers`, and then its timelines.

    `references` are those that were prepared, by the stem of their exercise; another one is run
    when it is needed. Raises KeyError for an unknown function, and OSError where nobody reads
    answers.
    """
    from gpudojo.grading.engine import FileGrader

    grader = FileGrader(Path(job.path), kind, seed, watching=True, references=references)
    limits = Limits(
        seconds=DEFAULT_SECONDS, shared=True, characters=OUTPUT_CHARACTERS, interruptible=False
    )
    for name in job.functions:
        function = exercise.function_named(name)
        with _catch_output() as printed, _skip_breakpoints(Path(job.path)) as skipped:
            results = grader.results_of(exercise, function, limits)
        file = grader.submission
        stopped = None
        if file is not None and (name in file.names or name in file.todo):
            stopped = file.broken
        first_skipped = next(iter(skipped), None)
        verdict = StandbyResult(job.stem, name, results, printed.getvalue(), stopped, first_skipped)
        _send_frame(answers, verdict)
        if name not in grader.pairs:
            continue
        timelines = grader.pairs[name].make_timelines()
        if timelines is not None:
            drawn = DrawnTimelines(job.stem, name, *timelines)
            _send_frame(answers, drawn)


@contextlib.contextmanager
def _catch_output() -> Iterator[io.StringIO]:
    """Catch what is printed in the block, to stdout and stderr, in the text that this gives."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


@contextlib.contextmanager
def _skip_breakpoints(path: Path) -> Iterator[list[int]]:
    """Skip `breakpoint()` and `pdb.set_trace()` in the block: a debugger has no terminal here.

    Gives the lines of the student's file at which one was skipped, in the order of time. Both
    functions are put back at the end.
    """
    import pdb

    lines: list[int] = []

    def note_line(*args: Any, **kwargs: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != str(path):
            frame = frame.f_back
        if frame is not None:
            lines.append(frame.f_lineno)

    hook_before = sys.breakpointhook
    set_trace_before = pdb.set_trace
    sys.breakpointhook = note_line
    pdb.set_trace = note_line
    try:
        yield lines
    finally:
        sys.breakpointhook = hook_before
        pdb.set_trace = set_trace_before


if __name__ == "__main__":
    main()
