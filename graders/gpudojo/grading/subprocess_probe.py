"""Runs a probe in a subprocess that has no GPU."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, Final

from gpudojo.model.catalogue import day, days, every_exercise
from gpudojo.model.evidence import Evidence, Observation, decode_evidence, encode_evidence
from gpudojo.model.exercise import Exercise, Function, Probe

SECONDS: Final = 60.0


class _Other:
    """The other process, and what it has answered."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, question: dict[str, Any]) -> str:
        if self.process is None or self.process.poll() is not None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        try:
            answer = self.answers.get(timeout=SECONDS)
        except queue.Empty:
            self.end()
            raise RuntimeError(f"no evidence after {SECONDS:g} s") from None
        if not answer:
            self.end()
        return answer

    def _start(self) -> None:
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", __name__]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii"
        )
        self.answers = queue.SimpleQueue()
        assert self.process.stdout is not None
        threading.Thread(target=_listen, args=(self.process.stdout, self.answers), daemon=True).start()
        atexit.register(self.end)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):
                        stream.close()
            self.process = None


def _listen(stream: IO[str], answers: queue.SimpleQueue[str]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in stream:
            answers.put(line.strip())
    answers.put("")


_other = _Other()


def observe_apart(exercise: Exercise, function: Function, probe: Probe, path: Path, seed: int) -> Observation:
    question = {"stem": exercise.stem, "function": function.name, "probe": probe.name, "path": str(path), "seed": seed}
    answer = _other.ask(question)
    if not answer:
        raise RuntimeError(f"the process for the probe {probe.name} ended without evidence")
    return decode_evidence(base64.b64decode(answer)).observations[probe.name]


def main() -> None:
    """Answer questions, a line each, until there are no more."""
    # What student code prints goes where it can be seen, and is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    # Once, for all children: what they would each import, and what the first optimizer and bench bring with them.
    import torch
    from virtual_cuda import virtual_cuda

    from gpudojo.grading import observe as observing  # noqa: F401

    torch.set_num_threads(1)
    with virtual_cuda():
        torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)])
    for name in days():
        day(name)
    for line in sys.stdin:
        question = json.loads(line)
        if hasattr(os, "fork") and sys.platform == "linux":
            pid = os.fork()
            if pid == 0:
                _answer(question, answers)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if status:
                print("", file=answers, flush=True)
        else:
            _answer(question, answers)


def _answer(question: dict[str, Any], answers: IO[str]) -> None:
    from gpudojo.grading.load import load
    from gpudojo.grading.observe import observe_one

    exercise = next(e for _, e in every_exercise() if e.stem == question["stem"])
    function = next(f for f in exercise.functions if f.name == question["function"])
    probe = next(p for p in function.probes if p.name == question["probe"])
    seen = observe_one(exercise, function, probe, load(Path(question["path"])), "virtual", question["seed"])
    evidence = Evidence(exercise.stem, function.name, "virtual", question["seed"], {probe.name: seen})
    print(base64.b64encode(encode_evidence(evidence)).decode(), file=answers, flush=True)


if __name__ == "__main__":
    main()
