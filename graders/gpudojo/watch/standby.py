"""A process that has torch, the device and the exercise loaded before it is needed, and grades one request.

`Standby` starts it and talks to it; `python -m gpudojo.watch.standby STEM PATH DEVICE SEED` is the process itself. Each
grades once: what student code leaves behind in a process cannot change the next verdict. It is the same on every
system, as nothing is forked.
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
from typing import IO, TYPE_CHECKING, Final

import msgspec
from virtual_cuda.ledger import Timeline

from gpudojo.grading.limits import DEFAULT_SECONDS, Limits
from gpudojo.model.catalogue import every_exercise
from gpudojo.model.evidence import Evidence, Raised
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult

if TYPE_CHECKING:
    from gpudojo.grading.references import Reference

CHARACTERS: Final = 100_000  # of output that are kept of each function
TAIL: Final = 4_000  # bytes of what the process wrote to stderr
LONGEST: Final = 1 << 26  # bytes of a frame


class StandbyJob(msgspec.Struct, frozen=True):
    """Functions of one file to grade, in this order."""

    stem: str
    path: str
    functions: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Everything is loaded; a request would be graded at once."""


class StandbyResult(msgspec.Struct, frozen=True, tag=True):
    """The verdict on one function; `stopped` is the error that ended its file after the function was defined."""

    stem: str
    function: str
    results: list[CheckResult]
    printed: str = ""
    stopped: Raised | None = None


class Drawn(msgspec.Struct, frozen=True, tag=True):
    """What the busiest call of a function did, and the same call of the reference."""

    stem: str
    function: str
    yours: Timeline
    theirs: Timeline | None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The process has ended: with exit code 0 after a whole request. `said` is the end of what it wrote to stderr."""

    code: int
    said: str = ""


Frame = Ready | StandbyResult | Drawn | Ended
_frames: Final = msgspec.msgpack.Decoder(Frame)
_requests: Final = msgspec.msgpack.Decoder(list[StandbyJob])


def _send(stream: IO[bytes], frame: object) -> None:
    data = msgspec.msgpack.encode(frame)
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes | None:
    """The next frame; None where there is no whole one any more."""
    head = stream.read(4)
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > LONGEST:
        return None
    data = stream.read(size)
    return data if len(data) == size else None


class Standby:
    """One such process. `tell` is called with each frame, in another thread; the last one is `Ended`."""

    def __init__(
        self, stem: str, path: Path, kind: str, seed: int, tell: Callable[[Standby, Frame], None]
    ) -> None:
        self.ready = False
        self._tell = tell
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH", "")])]
        # A session of its own: the user's Ctrl-C is for the one who asks. -P: no module of the student's folder.
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, stem, str(path), kind, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._said = b""
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._frames = threading.Thread(target=self._read_frames, daemon=True)
        self._errors.start()
        self._frames.start()

    def ask(self, jobs: Sequence[StandbyJob]) -> None:
        """Sends the one request; it may be sent before the process is ready."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has died, and `Ended` says so
            _send(self.process.stdin, jobs)

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Ends the process, and waits until it is gone."""
        self.kill()
        self._frames.join()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            while data := stream.read1(TAIL):  # type: ignore[attr-defined]
                self._said = (self._said + data)[-TAIL:]

    def _read_frames(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            while (data := _received(stream)) is not None:
                frame = _frames.decode(data)
                self.ready |= isinstance(frame, Ready)
                self._tell(self, frame)
        code = self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._errors.join(1)  # something that student code has started may still hold it
        self._tell(self, Ended(code, self._said.decode(errors="replace")))


class Prepared:
    """A reference whose evidence and timelines were made beforehand, for the functions of one exercise."""

    def __init__(self, reference: Reference, exercise: Exercise, kind: str, seed: int) -> None:
        from gpudojo.grading.watching import EveryCall

        self.reference = reference
        self._evidence: dict[str, Evidence] = {}
        self._timelines: dict[str, list[Timeline]] = {}
        for function in exercise.functions:
            calls = EveryCall(function.name)
            self._evidence[function.name] = reference.evidence(
                exercise, calls.over(function), kind, seed
            )
            self._timelines[function.name] = (
                reference.timelines(exercise, function) or calls.timelines
            )

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        return self._evidence[function.name]

    def signature(self, exercise: Exercise, function: Function) -> str:
        return self.reference.signature(exercise, function)

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        return self._timelines[function.name]


def main() -> None:
    """The process: gets ready, reads one request, answers, and ends."""
    stem = sys.argv[1]
    path = Path(sys.argv[2])
    kind = sys.argv[3]
    seed = int(sys.argv[4])
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # `input()` must not read requests
    os.dup2(2, 1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    exercises = {exercise.stem: exercise for _, exercise in every_exercise()}
    references = _get_ready(exercises[stem], path, kind, seed)
    _send(answers, Ready())
    data = _received(requests)
    if data is None:
        os._exit(0)
    threading.Thread(target=_end_with, args=(requests,), daemon=True).start()
    for job in _requests.decode(data):
        _grade(job, exercises[job.stem], kind, seed, references, answers)
    os._exit(0)  # whatever student code has left behind to be done at the end


def _end_with(requests: IO[bytes]) -> None:
    """Ends this process when the one that asks is gone."""
    requests.read()
    os._exit(1)


def _get_ready(exercise: Exercise, path: Path, kind: str, seed: int) -> dict[str, Reference]:
    """Does once what would take time when it is done first; the references that were prepared, by exercise."""
    import torch
    import virtual_cuda

    from gpudojo.grading.references import reference_for
    from gpudojo.model.errors import DojoError

    importlib.import_module("gpudojo.grading.observe")
    with virtual_cuda.open_device(kind) as opened:  # type: ignore[arg-type]
        device = opened.device
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten()
        )
        model.append(torch.nn.Linear(8, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        data = torch.utils.data.TensorDataset(
            torch.ones(4, 1, 4, 4), torch.zeros(4, dtype=torch.long)
        )
        for inputs, targets in torch.utils.data.DataLoader(data, 2):
            loss = torch.nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        with torch.no_grad():
            model.eval()(data[:2][0].to(device)).argmax(1).cpu()
    try:
        return {exercise.stem: Prepared(reference_for(path, exercise), exercise, kind, seed)}
    except DojoError:
        return {}  # it is met again, and told, when a function is graded


def _grade(
    job: StandbyJob,
    exercise: Exercise,
    kind: str,
    seed: int,
    references: dict[str, Reference],
    answers: IO[bytes],
) -> None:
    from gpudojo.grading.engine import FileGrader

    grader = FileGrader(Path(job.path), kind, seed, watching=True, references=references)
    limits = Limits(
        seconds=DEFAULT_SECONDS, shared=True, characters=CHARACTERS, interruptible=False
    )
    functions = {function.name: function for function in exercise.functions}
    for name in job.functions:
        with _printed() as printed:
            results = grader.results(exercise, functions[name], limits)
        file = grader.submission
        stopped = file.broken if file is not None and name in file.names else None
        _send(answers, StandbyResult(job.stem, name, results, printed.getvalue(), stopped))
        drawn = grader.pairs[name].timelines() if name in grader.pairs else None
        if drawn is not None:
            _send(answers, Drawn(job.stem, name, *drawn))


@contextlib.contextmanager
def _printed() -> Iterator[io.StringIO]:
    """What is printed meanwhile. A debugger has no terminal here, so `breakpoint()` only says where it works."""
    text = io.StringIO()
    before = sys.breakpointhook
    sys.breakpointhook = lambda *args, **kwargs: print(
        "breakpoint() was skipped: it works in `pytest`"
    )
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield text
    finally:
        sys.breakpointhook = before


if __name__ == "__main__":
    main()
