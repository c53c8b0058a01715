"""`read_nvidia_smi`: the table of `nvidia-smi` as dicts."""

from __future__ import annotations

import random
from typing import Any, Final

from gpudojo.days.day8.timing_and_profiling.declaration import read_nvidia_smi
from gpudojo.grading.call import Call, StudentRaised, try_inputs
from gpudojo.grading.checks import raised_instead, runs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type, with_article

# ---- scenarios ---------------------------------------------------------------------------------


class Read(Case, frozen=True):
    """What one text gave: a dict in words for each item, such as {"index": "3 (int)"}."""

    text: str
    kind: str
    gpus: list[dict[str, str]]


def _call_read_nvidia_smi(call: Call, text: str) -> Read:
    """Call the student's function with a text and describe its answer. Raises StudentRaised."""
    try:
        answer = call(text)
    except StudentRaised as error:
        message = f"{error.evidence.message} (for the text {text!r})"
        raise error.with_facts(message=message) from None
    gpus = []
    if isinstance(answer, list):
        gpus = [_describe_gpu(gpu) for gpu in answer]
    return Read(text, type(answer).__name__, gpus)


def _describe_gpu(gpu: Any) -> dict[str, str]:
    """One item of the list that the student's function returned, in words."""
    if not isinstance(gpu, dict):
        return {"no dict": with_article(type(gpu).__name__)}
    words = {}
    for key, value in dict.items(gpu):
        words[str(key)] = _value_in_words(value)
    return words


def _value_in_words(value: Any) -> str:
    """A value and its type, because 3 and "3" print alike."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{value!r:.80} ({kind})"


MODELS: Final = (
    "NVIDIA H200",
    "NVIDIA A100-SXM4-80GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GB10",
)


UNKNOWN: Final = "[N/A]"


def _draw_line(draw: random.Random, index: int, model: str, used: str = "", total: str = "") -> str:
    """The line of one GPU; numbers that are not given are drawn."""
    used = used or str(draw.randrange(1, 9_999))
    total = total or str(draw.randrange(10_000, 150_000))
    return f"{index}, {model}, {used}, {total}"


def _make_texts(seed: int) -> dict[str, str]:
    """Texts that nvidia-smi may print, by scenario.

    The last GPU of `several` comes first, as with `nvidia-smi -i`. Only `blank` ends with an end of
    line: who splits at those gets an empty line, which is the subject of one check.
    """
    draw = random.Random(seed)
    models = draw.sample(MODELS, 5)
    first = _draw_line(draw, 0, models[0])
    second = _draw_line(draw, 1, models[1])
    unused = _draw_line(draw, draw.randrange(10, 99), models[2], used="0")
    unknown = _draw_line(draw, 0, models[3], used=UNKNOWN, total=UNKNOWN)
    half_known = _draw_line(draw, 1, models[4], used=UNKNOWN)
    return {
        "one": first,
        "several": f"{unused}\n{first}\n{second}",
        "unknown": f"{unknown}\n{half_known}",
        "blank": f"\n{first}\n\n\n{second}\n\n",
        "nothing": "",
    }


@read_nvidia_smi.probe(machine="laptop")
def texts(call: Call) -> Cases[Read]:
    return try_inputs(_call_read_nvidia_smi, call, _make_texts(call.seed))


# ---- claims ------------------------------------------------------------------------------------

USUAL: Final = ("one", "several")  # scenarios
runs(read_nvidia_smi, scenarios=USUAL)


def _expect_same_gpus(seen: Seen, wanted: Seen, *names: str) -> None:
    """Raises Failed unless the texts of these names gave the reference's dicts."""
    for name in names:
        right = wanted[texts][name]
        raised = seen[texts].errors.get(name)
        if raised is not None:
            raise raised_instead(raised, "it")
        found = seen[texts][name]
        if found.kind != "list":
            raise returned_other_type(found.kind, "a list of dicts")
        count = len(found.gpus)
        if count != len(right.gpus):
            if count == 1:
                dicts = "1 dict"
            else:
                dicts = f"{count} dicts"
            happened = f"{right.text!r} gave {dicts}"
            raise Failed(happened, str(len(right.gpus)), at=("first return",))
        for gpu, wished in zip(found.gpus, right.gpus, strict=True):
            if gpu != wished:
                happened = f"{right.text!r} gave {_gpu_in_words(gpu)}"
                at = _where_to_look(gpu, wished)
                raise Failed(happened, _gpu_in_words(wished), at=at)


def _where_to_look(gpu: dict[str, str], wished: dict[str, str]) -> tuple[str, ...]:
    """Patterns for the line that made a wrong dict, where only its memory is wrong."""
    for key in ("index", "name"):
        if gpu.get(key) != wished[key]:
            return ()
    return ('== "[N/A]"', "int(")


def _gpu_in_words(gpu: dict[str, str]) -> str:
    values = [f"{key}: {value}" for key, value in gpu.items()]
    return "{" + ", ".join(values) + "}"


@read_nvidia_smi.check(points=0.25)
def reads_every_gpu(seen: Seen, wanted: Seen) -> None:
    """One dict per GPU, in the order of the lines, with its name and its numbers as ints."""
    _expect_same_gpus(seen, wanted, "one", "several")


@read_nvidia_smi.check(points=0.25)
def reads_missing_values(seen: Seen, wanted: Seen) -> None:
    """`[N/A]` becomes None."""
    _expect_same_gpus(seen, wanted, "unknown")


@read_nvidia_smi.check(points=0.25)
def skips_blank_lines(seen: Seen, wanted: Seen) -> None:
    """Empty lines are skipped; an empty text gives an empty list."""
    _expect_same_gpus(seen, wanted, "blank", "nothing")
