"""Runs probes in a process that has no GPU, for those about machines without the real one.

`observe_in_subprocess` starts the process when it is first needed and asks it, a line of JSON for
each question; `main` is that process.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

import virtual_cuda

from gpudojo.grading.lazy_torch import torch
from gpudojo.grading.load import load_submission
from gpudojo.grading.probing import observe_here
from gpudojo.model.catalogue import day_names, every_exercise, exercises_of
from gpudojo.model.evidence import Evidence, Observation, decode_evidence, encode_evidence
from gpudojo.model.exercise import Exercise, Function, Probe

ANSWER_SECONDS: Final = 60.0  # for one probe


class _Subprocess:
    """A process without a GPU that answers questions, a line each."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, question: dict[str, Any]) -> str:
        """Write a question to the process and return its answer, a line; "" if the process ended
        instead.

        Starts the process where none runs. It is killed if it gives no answer. Raises RuntimeError
        where no answer comes in ANSWER_SECONDS, and OSError where it cannot be started or written
        to.
        """
        if self.process is None or self.process.poll() is not None:
            self._start_process()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        with ThreadPoolExecutor(1, "gpudojo answers") as reader:
            line = reader.submit(self.process.stdout.readline)
            try:
                answer = line.result(ANSWER_SECONDS).strip()
            except TimeoutError:
                self.kill_process()
                raise RuntimeError(f"no evidence after {ANSWER_SECONDS:g} s") from None
        if not answer:
            self.kill_process()
        return answer

    def _start_process(self) -> None:
        """Start the process. It is killed when this one ends."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpudojo.grading.subprocess_probe"],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="ascii",
        )
        atexit.register(self.kill_process)

    def kill_process(self) -> None:
        """Kill the process and close its pipes, if one runs."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                # A thread may be reading from it, or have found it closed.
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
        self.process = None


_subprocess: Final = _Subprocess()


def observe_in_subprocess(
    exercise: Exercise, function: Function, probe: Probe[Any], path: Path, seed: int
) -> Observation:
    """What a probe sees in a process without a GPU, with the student's file at `path`.

    The process is started if none runs. Raises RuntimeError where that ends without an answer, or
    none comes, BadEvidence for an answer that cannot be read, and OSError where the process cannot
    be started or written to.
    """
    question = {
        "stem": exercise.stem,
        "function": function.name,
        "probe": probe.name,
        "path": str(path),
        "seed": seed,
    }
    answer = _subprocess.ask(question)
    if not answer:
        raise RuntimeError(f"the process for the probe {probe.name} ended without evidence")
    evidence = decode_evidence(base64.b64decode(answer))
    return evidence.observations[probe.name]


def main() -> None:
    """The subprocess: answers questions on standard input, a line each, until there are no more.

    What is printed goes to standard error from now on. Raises what a probe, the device or a day's
    file raises, which ends the process.
    """
    # What student code prints goes to standard error, where it can be seen, and is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    # Once for all children: what each would import, and what the first optimizer and the first
    # device bring with them.
    torch.set_num_threads(1)
    with virtual_cuda.virtual_cuda():
        torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)])
    for day in day_names():
        exercises_of(day)
    for line in sys.stdin:
        question = json.loads(line)
        if sys.platform == "linux":
            _answer_in_child(question, answers)
        else:
            _answer_here(question, answers)


def _answer_in_child(question: dict[str, Any], answers: IO[str]) -> None:
    """Answer in a forked process; write an empty line where that fails. Only on Linux.

    An error of the answer ends the child alone. Waits for its end. Raises OSError if there can be
    no process, and NotImplementedError on Windows.
    """
    if sys.platform == "win32":
        raise NotImplementedError("there is no fork on Windows")
    pid = os.fork()
    if pid == 0:
        _answer_here(question, answers)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        print("", file=answers, flush=True)


def _answer_here(question: dict[str, Any], answers: IO[str]) -> None:
    """Run the probe that is asked for, and write its evidence as one line to `answers`.

    Raises KeyError for an unknown exercise, function or probe, and what `observe_here` raises.
    `question` has stem, function, probe, path and seed.
    """
    exercises = {exercise.stem: exercise for _, exercise in every_exercise()}
    exercise = exercises[question["stem"]]
    function = exercise.function_named(question["function"])
    probes = {probe.name: probe for probe in function.probes}
    probe = probes[question["probe"]]
    submission = load_submission(Path(question["path"]))
    seed = question["seed"]
    seen = observe_here(function, probe, submission, "virtual", seed)
    observations = {probe.name: seen}
    evidence = Evidence(exercise.stem, function.name, "virtual", seed, observations)
    line = base64.b64encode(encode_evidence(evidence)).decode()
    print(line, file=answers, flush=True)


if __name__ == "__main__":
    main()
