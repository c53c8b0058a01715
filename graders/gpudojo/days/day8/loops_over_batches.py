"""Judges loops over batches: the mistake behind an error, and the device a model ran on."""

from __future__ import annotations

from collections.abc import Collection

from gpudojo.grading.checks import device_mistake, is_between_gpus
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Failed, Seen


def why_a_loop_raised(raised: Raised, seen: Seen) -> str | None:
    """The misconception behind an error of a loop over batches; None if none is known.

    It depends on the scenario, such as `on_the_second_gpu`. Where the model was on the device
    before the call (`model_already_there`) and meets inputs on the CPU, the function moves neither:
    with a model on the CPU it ran.
    """
    if raised.scenario == "on_the_second_gpu" and is_between_gpus(raised.message):
        return "device-index-dropped"
    key = device_mistake(raised)
    if raised.scenario == "told_to_use_the_cpu" and key is not None:
        return "hard-coded-cuda"  # nothing should have been on a GPU
    if raised.scenario == "model_already_there" and key == "inputs-on-cpu":
        return "model-not-moved"
    return key


def expect_ran_on(device: str, used: Collection[str], line: int | None = None) -> None:
    """Raises Failed unless a model ran on this device, and on no other."""
    if set(used) == {device}:
        return
    where = " and ".join(sorted(used)) or "no device"
    key = None
    if used and device == "cpu":
        key = "hard-coded-cuda"
    elif set(used) == {"cpu"}:
        key = "model-not-moved"
    elif device == "cuda:1" and set(used) == {"cuda:0"}:
        key = "device-index-dropped"
    raise Failed(f"with device={device!r}, the model ran on {where}", device, line, key)
