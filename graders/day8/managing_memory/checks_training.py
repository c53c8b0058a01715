"""Do the gradients add up to the steps they should, and are they the plain loop's with less memory?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graders.checks.common import diagnosis, runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.managing_memory.functions import accumulate, checkpointed
from graders.evidence import Array

KIB = 1024
WHOLE = ("2 batches by 2", "4 batches by 2", "2 batches by 1")
REMAINDERS = ("1 batch by 2", "5 batches by 3")
DIRTY = ("1 batch by 1",)


def _diagnose(scenario: str, said: str) -> str | None:
    """Where only a model that is there already meets inputs of the CPU, the other one had stayed there with them."""
    key = diagnosis(said)
    return "model-not-moved" if scenario == "model_already_there" and key == "inputs-on-cpu" else key


runs(accumulate, diagnose=_diagnose)


def _accumulations(
    seen: Seen, wanted: Seen, names: tuple[str, ...] = WHOLE + REMAINDERS + DIRTY
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, facts and the reference's facts of every pass over a loader, in the order of the probe."""
    for scenario, passes in wanted["accumulations"].facts.items():
        for name, right in passes.items():
            if name in names:
                yield name.replace(" by ", ", steps="), seen["accumulations"].facts[scenario][name], right


@accumulate.check(points=0.25)
def works_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The model is trained on the device passed in."""
    for _, facts, right in _accumulations(seen, wanted):
        if facts["devices"] != right["devices"]:
            place = right["wanted_device"]
            key = "hard-coded-cuda" if place == "cpu" else "model-not-moved"
            raise Failed(f"told to use {place}, the model is on {', '.join(facts['devices'])}", place, None, key)


@accumulate.check(points=0.5)
def steps_after_every_group(seen: Seen, wanted: Seen) -> None:
    """The optimizer steps after every `steps` batches, with the mean of their gradients."""
    for name, facts, right in _accumulations(seen, wanted, WHOLE):
        if facts["taken"] != right["taken"] or not _close(facts["after"], right["after"]):
            raise _unlike(name, facts, right)


def _unlike(name: str, facts: dict[str, Any], right: dict[str, Any]) -> Failed:
    """Why the weights are not those of the reference."""
    steps, step_line, backward_line = right["steps"], facts["step_line"], facts["backward_line"]
    if facts["taken"] != right["taken"]:
        key = "missing-step" if facts["taken"] == 0 else None
        return Failed(f"({name}) the optimizer {_stepped(facts['taken'])}", _times(right["taken"]), step_line, key)
    if facts["per_step"] != right["per_step"]:
        early = facts["unused"] and facts["batches"] == right["batches"]
        return Failed(
            f"({name}) the steps followed {facts['per_step']} backward passes",
            f"{right['per_step']}: as many as there are batches for each step",
            step_line,
            "step-before-backward" if early else None,
        )
    if steps > 1 and facts["scales"] and all(scale == 1 for scale in facts["scales"]):
        return Failed(
            f"({name}) the losses went into backward() undivided: each step is up to {steps} times too large",
            f"each batch's loss divided by {steps}",
            backward_line,
            "loss-not-divided",
        )
    if facts["scales"] != right["scales"]:
        return Failed(f"({name}) the losses were scaled by {facts['scales']}", f"{right['scales']}", backward_line)
    added = list(zip(facts["clean"], right["clean"], strict=False))
    if (False, True) in added:
        return Failed(
            f"({name}) gradients that an earlier step had used were still there when backward() added to them",
            "gradients zeroed after every step",
            step_line,
            "missing-zero-grad",
        )
    if (True, False) in added:
        return Failed(
            f"({name}) the gradients were zeroed in the middle of a group, so that a step used its last batch only",
            f"the gradients of {steps} batches added up",
            at=("last zero_grad(", "zero_grad("),
        )
    return Failed(f"({name}) the weights differ from the reference's", "each batch's gradient divided by `steps`")


@accumulate.check(points=0.5, needs=("runs", "steps_after_every_group"))
def steps_for_the_remainder(seen: Seen, wanted: Seen) -> None:
    """Batches left over at the end get one more step."""
    # The longer pass first: in one of a single batch, different mistakes look alike.
    for name, facts, right in reversed(list(_accumulations(seen, wanted, REMAINDERS))):
        if facts["taken"] < right["taken"]:
            unused = right["batches"] - sum(facts["per_step"])
            raise Failed(
                f"({name}) no step used the gradients of {unused} of {right['batches']} batches",
                "one more step for them",
                facts["step_line"],
                "remainder-dropped",
            )
        if not _close(facts["after"], right["after"]):
            raise _unlike(name, facts, right)


@accumulate.check(points=0.25, needs=("runs", "steps_after_every_group"))
def starts_from_nothing(seen: Seen, wanted: Seen) -> None:
    """Gradients that were there before the call do not leak into the first step."""
    for _, facts, right in _accumulations(seen, wanted, DIRTY):
        if not _close(facts["after"], right["after"]):
            raise Failed(
                "gradients from before the call went into the first step",
                "gradients zeroed before the loop",
                facts["step_line"],
                "missing-zero-grad",
            )


@accumulate.check(points=0.25)
def leaves_the_mode_alone(seen: Seen, wanted: Seen) -> None:
    """Training or evaluation mode is the caller's choice and stays as it was."""
    for _, facts, right in _accumulations(seen, wanted):
        mode = "training" if right["training"] else "evaluation"
        if any(was is not right["training"] for was in (*facts["modes"], facts["mode_after"])):
            raise Failed(f"a model in {mode} mode was put into the other one", f"{mode} mode throughout")


@accumulate.check(points=0.25)
def returns_the_number_of_steps(seen: Seen, wanted: Seen) -> None:
    """It returns the number of optimizer steps, as an int."""
    for name, facts, _ in _accumulations(seen, wanted):
        if facts["value"] is None:
            raise Failed(f"({name}) it returned {facts['shown']}", f"{facts['taken']}, the number of steps")
        if facts["value"] != facts["taken"]:
            raise Failed(f"({name}) it returned {facts['value']}", f"{facts['taken']}, the steps it took")


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _stepped(count: int) -> str:
    return f"stepped {_times(count)}" if count else "never stepped"


def _close(found: list[Array], right: list[Array]) -> bool:
    import numpy as np

    if len(found) != len(right):
        return False
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.allclose(np.frombuffer(a.data, a.dtype), np.frombuffer(b.data, b.dtype), rtol=1e-3, atol=1e-5)
        for a, b in zip(found, right, strict=True)
    )


runs(checkpointed)


def _passes(seen: Seen, wanted: Seen, *names: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    facts, right = seen["passes"].facts, wanted["passes"].facts
    # Dropout on a real GPU is another than on the virtual one. Where only the reference's evidence was made on that,
    # as in a released repository, the values are those of the plain loop that ran beside the student's.
    plain = facts.get("plain", {}) if "plain" not in right else {}
    for name in names:
        values = {key: plain[name][key] for key in ("out", "gradients")} if plain else {}
        yield name, facts[name], right[name] | values


@checkpointed.check(points=0.25)
def gives_the_same_output(seen: Seen, wanted: Seen) -> None:
    """The output is that of the plain loop."""
    for name, facts, right in _passes(seen, wanted, "a list", "two blocks", "one block"):
        if facts["out"] is None:
            raise Failed(f"({name}) it returned {called(facts['class'])}", "a tensor")
        if facts["device"] != right["device"]:
            raise Failed(f"({name}) the output is on {facts['device']}", right["device"])
        if not _close([facts["out"]], [right["out"]]):
            raise Failed(f"({name}) the output differs from the plain loop's", "the same values")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output"))
def gives_the_same_gradients(seen: Seen, wanted: Seen) -> None:
    """Every parameter and the input get the gradients of the plain loop, dropout included."""
    for name, facts, right in _passes(seen, wanted, "a list"):
        _same_gradients(f"({name}) ", facts, right, None)


def _same_gradients(where: str, facts: dict[str, Any], right: dict[str, Any], misconception: str | None) -> None:
    if facts["error"]:
        raise Failed(f"{where}backward() raised {facts['error']}", "gradients", misconception=misconception)
    if facts["missing"] > right["missing"] or facts["gradients"] is None:
        count = "1 tensor" if facts["missing"] == 1 else f"{facts['missing']} tensors"
        raise Failed(f"{where}{count} got no gradient", "a gradient for each", misconception=misconception)
    if not _close([facts["gradients"]], [right["gradients"]]):
        raise Failed(f"{where}the gradients differ from the plain loop's", "the same values")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients"))
def trains_on_plain_data(seen: Seen, wanted: Seen) -> None:
    """The blocks get their gradients also when `x` is data that requires none."""
    for name, facts, right in _passes(seen, wanted, "two blocks"):
        where = f"({name}, x requires no gradient) "
        if facts.get("switched"):
            happened = f"{where}the `x` that was passed in requires one afterwards"
            raise Failed(happened, "x as it was: `use_reentrant=False` needs no more", None, "input-modified")
        _same_gradients(where, facts, right, "reentrant-on-plain-data")


@checkpointed.check(points=0.25, needs=("runs", "gives_the_same_output", "gives_the_same_gradients"))
def needs_less_memory(seen: Seen, wanted: Seen) -> None:
    """Activations are made again in backward instead of being stored, and the peak of memory is lower."""
    stored, count = seen["passes"].facts["stored"], wanted["passes"].facts["blocks"]
    for name, facts, right in _passes(seen, wanted, "a list"):
        again = facts["recomputed"]
        if again < count / 2:  # some ways of cutting a list into segments leave the last one as it is
            happened = "no block" if again == 0 else f"only {again} of {count} blocks"
            raise Failed(
                f"({name}) {happened} ran again in backward: the activations were stored", "blocks that run twice"
            )
        if right["peak"] is not None and not facts["peak"] <= 0.85 * stored:
            raise Failed(
                f"({name}) forward and backward took {facts['peak'] // KIB} KiB, the plain loop takes {stored // KIB}",
                f"about {right['peak'] // KIB} KiB",
            )


@checkpointed.check(points=0.25)
def copes_with_no_blocks(seen: Seen, wanted: Seen) -> None:
    """Without any block the output is `x`."""
    facts, right = seen["passes"].facts["no blocks"], wanted["passes"].facts["no blocks"]
    if "raised" in facts:
        raise Failed(f"an empty list raised {facts['raised']}", "x itself", facts["line"])
    if facts["out"] is None or not _close([facts["out"]], [right["out"]]):
        shown = "None" if facts["class"] == "NoneType" else f"{called(facts['class'])} that is not x"
        raise Failed(f"an empty list gave {shown}", "x itself")
