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


class GpuRow(Case, frozen=True):
    """One item of the list: its type, and each value with its type.

    The types are there because 3 and "3" print alike.
    """

    kind: str
    values: dict[str, tuple[str, str | None]]

    def __str__(self) -> str:
        """The item for people, with the type of each value."""
        if self.kind != "dict":
            return with_article(self.kind)
        items = []
        for key, (kind, text) in self.values.items():
            value = f"{text} ({kind})"
            if kind == "str":
                value = f"{text!r} (str)"
            elif not text:
                value = "None"
            items.append(f"{key}: {value}")
        return "{" + ", ".join(items) + "}"


class Read(Case, frozen=True):
    """What one text gave."""

    text: str
    kind: str
    gpus: list[GpuRow]


def _call_read_nvidia_smi(call: Call, text: str) -> Read:
    """Call the student's function with a text and describe its answer. Raises StudentRaised."""
    try:
        answer = call(text)
    except StudentRaised as error:
        message = f"{error.evidence.message} (for the text {text!r})"
        raise error.with_facts(message=message) from None
    gpus = answer if isinstance(answer, list) else ()
    rows = [_describe_gpu(gpu) for gpu in gpus]
    return Read(text, type(answer).__name__, rows)


def _describe_gpu(gpu: Any) -> GpuRow:
    """One item of the list that the student's function returned."""
    if not isinstance(gpu, dict):
        return GpuRow(type(gpu).__name__, {})
    values = {str(key): _describe_value(value) for key, value in dict.items(gpu)}
    return GpuRow("dict", values)


def _describe_value(value: Any) -> tuple[str, str | None]:
    """The type of a value and its text, which None has not."""
    if value is None:
        return "NoneType", None
    return type(value).__name__, str(value)


MODELS: Final = (
    "NVIDIA H200",
    "NVIDIA A100-SXM4-80GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GB10",
)


def _make_texts(seed: int) -> dict[str, str]:
    """Texts that nvidia-smi may print, by scenario.

    The last GPU of `several` comes first, as with `nvidia-smi -i`. Only `blank` ends with an end of
    line: who splits at those gets an empty line, which is the subject of one check.
    """
    draw = random.Random(seed)
    names = draw.sample(MODELS, 5)
    used = draw.sample(range(1, 9_999), 5)
    total = draw.sample(range(10_000, 150_000), 5)
    # Lines of the table
    first = f"0, {names[0]}, {used[0]}, {total[0]}"
    second = f"1, {names[1]}, {used[1]}, {total[1]}"
    unknown = f"0, {names[3]}, [N/A], [N/A]"
    half_known = f"1, {names[2]}, [N/A], {total[2]}"
    unused = f"{draw.randrange(10, 99)}, {names[4]}, 0, {total[4]}"
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
        # An error, no list, or a list of another length
        raised = seen[texts].errors.get(name)
        if raised is not None:
            raise raised_instead(raised, "it")
        found = seen[texts][name]
        if found.kind != "list":
            raise returned_other_type(found.kind, "a list of dicts")
        count = len(found.gpus)
        if count != len(right.gpus):
            dicts = "1 dict" if count == 1 else f"{count} dicts"
            happened = f"{right.text!r} gave {dicts}"
            raise Failed(happened, str(len(right.gpus)), at=("first return",))
        for gpu, wished in zip(found.gpus, right.gpus, strict=True):
            if gpu != wished:
                failed = Failed(f"{right.text!r} gave {gpu}", str(wished))
                failed.at = _where_to_look(gpu, wished, right)
                if gpu in _usual_gpus(seen):
                    failed.about = "reads_every_gpu"  # where it is as wrong
                seen.about(texts.name, name)
                raise failed


def _usual_gpus(seen: Seen) -> list[GpuRow]:
    """What the usual texts gave."""
    gpus: list[GpuRow] = []
    for name in USUAL:
        if name in seen[texts]:
            gpus += seen[texts][name].gpus
    return gpus


def _where_to_look(gpu: GpuRow, wished: GpuRow, right: Read) -> tuple[str, ...]:
    """Patterns for the line that made a wrong dict."""
    if gpu in right.gpus:  # that of another line: they may have been sorted
        return ("sorted(", "sort(")
    # The types of the wrong values, by key
    wrong = {}
    for key, value in wished.values.items():
        found = gpu.values.get(key, ("", None))
        if found != value:
            wrong[key] = found[0]
    wrong_keys = set(wrong)
    if wrong_keys <= {"used_mib", "total_mib"} and set(wrong.values()) <= {"int", "NoneType"}:
        return ('== "[N/A]"', "int(")
    if wrong_keys == {"name"}:
        return ("last split(",)
    return ()


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
