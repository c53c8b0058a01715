"""A process that has torch, the device and the exercise loaded, and grades one request.

`Standby` starts it and talks to it; `python -m gpudojo.watch.standby STEM PATH DEVICE SEED` is the
process itself. Each grades once: what student code leaves behind in a process cannot change the
next verdict. It works alike on every system, as nothing is forked.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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
    """Everything is loaded. A request would be graded at once."""


class StandbyResult(msgspec.Struct, frozen=True, tag=True):
    """The verdict on one function.

    `stopped` is the error that ended its file after the function was defined.
    """

    stem: str
    function: str
    results: list[CheckResult]
    printed: str = ""
    stopped: Raised | None = None


class DrawnTimelines(msgspec.Struct, frozen=True, tag=True):
    """What the busiest call of a function did, and the same call of the reference."""

    stem: str
    function: str
    yours: Timeline
    theirs: Timeline | None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The process has ended: with exit code 0 after a whole request.

    `said` is the end of what it wrote to stderr.
    """

    code: int
    said: str = ""


Frame = Ready | StandbyResult | DrawnTimelines | Ended


def _send_frame(stream: IO[bytes], content: object) -> None:
    """Write a frame: the size of what follows in four bytes, then the content as MessagePack.

    Raises OSError or ValueError where nobody reads the stream any more.
    """
    data = msgspec.msgpack.encode(content)
    head = len(data).to_bytes(4, "big")
    stream.write(head + data)
    stream.flush()


def _receive_frame(stream: IO[bytes]) -> bytes | None:
    """Read the content of the next frame. Returns None if there is no whole one any more."""
    head = stream.read(4)
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > FRAME_BYTES:
        return None
    data = stream.read(size)
    if len(data) < size:
        return None
    return data


class Standby:
    """A process that waits for one request, with everything loaded, to grade at once.

    `tell` is called with this object and each frame, in another thread; the last one is `Ended`.
    """

    def __init__(
        self, stem: str, path: Path, kind: str, seed: int, tell: Callable[[Standby, Frame], None]
    ) -> None:
        """Start the process, which gets ready for the exercise of this stem at once."""
        self.ready = False
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

    def send_request(self, jobs: Sequence[StandbyJob]) -> None:
        """Send the one request. It may be sent before the process is ready."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has died, and `Ended` says so
            _send_frame(self.process.stdin, jobs)

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
        """Pass on all frames. The last one says that the process has ended."""
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
        """Run the reference on a device of this kind. Raises DojoError where that fails."""
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
        """The evidence that was made for the function."""
        return self._evidence[function.name]

    def signature_of(self, exercise: Exercise, function: Function) -> str:
        """The signature of the reference's function."""
        return self.reference.signature_of(exercise, function)

    def timelines_of(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """The timelines of the reference's calls."""
        return self._timelines[function.name]


def main() -> None:
    """Be the process: get ready, read one request, answer it, and end.

    Its arguments are a stem, a path, a kind of device and a seed. Standard input and output are
    taken away from student code: requests come by one, answers go by the other.
    """
    stem = sys.argv[1]
    path = Path(sys.argv[2])
    kind = sys.argv[3]
    seed = int(sys.argv[4])
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # `input()` must not read requests, and `print` must not write answers.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    exercises = {exercise.stem: exercise for _, exercise in every_exercise()}
    _exercise_device(kind)
    references = _prepare_reference(exercises[stem], path, kind, seed)
    _send_frame(answers, Ready())
    request = _receive_frame(requests)
    if request is None:
        os._exit(0)
    threading.Thread(target=_end_with_asker, args=(requests,), daemon=True).start()
    jobs = msgspec.msgpack.decode(request, type=list[StandbyJob])
    for job in jobs:
        _grade_job(job, exercises[job.stem], kind, seed, references, answers)
    os._exit(0)  # whatever student code has left behind to be done at the end


def _end_with_asker(requests: IO[bytes]) -> None:
    """End this process when the one that asks is gone."""
    requests.read()
    os._exit(1)


def _exercise_device(kind: str) -> None:
    """Train a little on the device: what is done for the first time takes long."""
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

    `path` is that of the student's file, by which the reference is found.
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
    """Grade the functions of a job. Sends each verdict, and then its timelines.

    `references` are those that were prepared, by the stem of their exercise; another one is run
    when it is needed.
    """
    from gpudojo.grading.engine import FileGrader

    grader = FileGrader(Path(job.path), kind, seed, watching=True, references=references)
    limits = Limits(
        seconds=DEFAULT_SECONDS, shared=True, characters=OUTPUT_CHARACTERS, interruptible=False
    )
    for name in job.functions:
        function = exercise.function_named(name)
        with _catch_output() as printed:
            results = grader.results_of(exercise, function, limits)
        file = grader.submission
        stopped = None
        if file is not None and name in file.names:
            stopped = file.broken
        verdict = StandbyResult(job.stem, name, results, printed.getvalue(), stopped)
        _send_frame(answers, verdict)
        if name not in grader.pairs:
            continue
        timelines = grader.pairs[name].make_timelines()
        if timelines is not None:
            drawn = DrawnTimelines(job.stem, name, *timelines)
            _send_frame(answers, drawn)


@contextlib.contextmanager
def _catch_output() -> Iterator[io.StringIO]:
    """Catch what is printed meanwhile.

    A debugger has no terminal here, so `breakpoint()` only says where it works.
    """

    def skip_breakpoint(*args: Any, **kwargs: Any) -> None:
        print("breakpoint() was skipped: it works in `pytest`")

    text = io.StringIO()
    before = sys.breakpointhook
    sys.breakpointhook = skip_breakpoint
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield text
    finally:
        sys.breakpointhook = before


if __name__ == "__main__":
    main()
