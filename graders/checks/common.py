"""Which claims does every exercise make? That the function is there and runs in every scenario."""

from __future__ import annotations

import re
from collections.abc import Callable

from graders.curriculum.exercise import Function, Seen
from graders.curriculum.verdicts import Failed
from graders.evidence import Observation, Status

# What a probe calls the tensor that each of these is about.
_LEFT_BEHIND = {"inputs-on-cpu": "inputs", "targets-on-cpu": "targets", "numpy-on-device-tensor": "tensor"}


def runs(function: Function, points: float = 0, diagnose: Callable[[str, str], str | None] | None = None) -> None:
    """Declare the check that all others of the function need; `diagnose` knows more from scenario and message."""

    def judge(seen: Seen, wanted: Seen) -> None:
        for name, observation in seen.items():
            if observation.status is Status.RETURNED:
                continue
            name = observation.facts.get("scenario", name)
            failure = _failure(function.name, name, observation)
            if diagnose is not None and observation.raised is not None:
                failure.misconception = diagnose(name, observation.raised.message)
            copied = observation.facts.get("copied", {})
            if (key := failure.misconception) in _LEFT_BEHIND and _LEFT_BEHIND[key] in copied:
                # It is on the device, copied by this line just before; what was used is the original.
                failure.line, failure.misconception = copied[_LEFT_BEHIND[key]], "result-thrown-away"
            raise failure

    judge.__name__ = "runs"
    judge.__doc__ = f"`{function.name}` runs in every scenario without an error."
    function.check(points, needs=())(judge)


def _failure(function: str, scenario: str, observation: Observation) -> Failed:
    if observation.status is Status.MISSING:
        return Failed(f"the file defines no function `{function}`", f"a function named `{function}`")
    raised = observation.raised
    assert raised is not None
    where = "the file could not be run" if observation.status is Status.BROKEN else f"scenario `{scenario}` raised"
    return Failed(
        f"{where}: {raised.type}" + (f": {raised.message.splitlines()[0]}" if raised.message else ""),
        "no error",
        raised.line,
        diagnosis(raised.message),
    )


def between_gpus(message: str) -> bool:
    """Whether torch complains of tensors on two GPUs: one that was asked for by its index, and the first."""
    return "cuda:0" in message and "cuda:1" in message


def diagnosis(message: str) -> str | None:
    """The misconception behind one of torch's own complaints about devices."""
    if "same device" not in message and "Input type" not in message and "to numpy" not in message:
        return None
    if "device type tensor to numpy" in message:
        return "numpy-on-device-tensor"
    if re.search(r"got target is on cpu|nll_loss|cross_entropy", message):
        return "targets-on-cpu"
    if re.search(
        r"got (mat1|input|self|index) is on cpu|got (weight|bias) is on cuda|Input type \(torch\.FloatTensor\)", message
    ):
        return "inputs-on-cpu"
    if re.search(r"is on cuda:\d+, different from other tensors on cpu|weight type \(torch\.FloatTensor\)", message):
        return "model-not-moved"
    return None
