"""`read_nvidia_smi`: the table of `nvidia-smi` as dicts."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, Final

from gpudojo.days.day8.timing_and_profiling.declaration import read_nvidia_smi
from gpudojo.grading.call import Call, StudentRaised, try_scenarios
from gpudojo.grading.checks import runs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type, with_article


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
        values = [
            (key, kind, repr(text) if kind == "str" else text)
            for key, (kind, text) in self.values.items()
        ]
        return (
            "{"
            + ", ".join(
                f"{k}: {text} ({kind})" if text else f"{k}: None" for k, kind, text in values
            )
            + "}"
        )


class Read(Case, frozen=True):
    """What one text gave."""

    text: str
    kind: str
    gpus: list[GpuRow]


def _read(call: Call, text: str) -> Read:
    """Call the student's function with a text and describe its answer. Raises StudentRaised."""
    try:
        answer = call(text)
    except StudentRaised as error:
        raise error.with_facts(
            message=f"{error.evidence.message} (for the text {text!r})"
        ) from None

    def row(gpu: Any) -> GpuRow:
        values = dict.items(gpu) if isinstance(gpu, dict) else ()
        shown = {str(k): (type(v).__name__, None if v is None else str(v)) for k, v in values}
        return GpuRow("dict" if isinstance(gpu, dict) else type(gpu).__name__, shown)

    return Read(
        text, type(answer).__name__, list(map(row, answer)) if isinstance(answer, list) else []
    )


MODELS: Final = (
    "NVIDIA H200",
    "NVIDIA A100-SXM4-80GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GB10",
)


def _texts(seed: int) -> dict[str, str]:
    """Texts that nvidia-smi may print, by scenario.

    The last GPU of `several` comes first, as with `nvidia-smi -i`. Only `blank` ends with an end of
    line: who splits at those gets an empty line, which is the subject of one check.
    """
    draw = random.Random(seed)
    names = draw.sample(MODELS, 5)
    used = draw.sample(range(1, 9_999), 5)
    total = draw.sample(range(10_000, 150_000), 5)
    rows = [f"{index}, {names[index]}, {used[index]}, {total[index]}\n" for index in range(5)]
    return {
        "one": rows[0].strip(),
        "several": f"{draw.randrange(10, 99)}, {names[4]}, 0, {total[4]}\n{rows[0]}{rows[1].strip()}",
        "unknown": f"0, {names[3]}, [N/A], [N/A]\n1, {names[2]}, [N/A], {total[2]}",
        "blank": f"\n{rows[0]}\n\n{rows[1]}\n",
        "nothing": "",
    }


@read_nvidia_smi.probe(machine="laptop")
def texts(call: Call) -> Cases[Read]:
    return try_scenarios(
        {name: partial(_read, call, text) for name, text in _texts(call.seed).items()}
    )


runs(read_nvidia_smi, scenarios=("one", "several"))


def _same_gpus(seen: Seen, wanted: Seen, *names: str) -> None:
    """Raises Failed unless the texts of these names gave the reference's dicts."""
    usual = [
        gpu for name in ("one", "several") if name in seen[texts] for gpu in seen[texts][name].gpus
    ]
    for name in names:
        right = wanted[texts][name]
        # An error, no list, or a list of another length
        if (raised := seen[texts].errors.get(name)) is not None:
            raise Failed(f"it raised {raised.short}", "no error", raised.line)
        found = seen[texts][name]
        if found.kind != "list":
            raise returned_other_type(found.kind, "a list of dicts")
        if (count := len(found.gpus)) != len(right.gpus):
            happened = f"{right.text!r} gave {count} dict{'s' * (count != 1)}"
            raise Failed(happened, f"{len(right.gpus)}", at=("first return",))
        # A wrong dict, and where to look for the mistake
        for gpu, wished in zip(found.gpus, right.gpus, strict=True):
            if gpu != wished:
                # The GPU of another line is there: they may have been sorted.
                elsewhere = ("sorted(", "sort(") if gpu in right.gpus else ()
                unlike = {key for key in wished.values if gpu.values.get(key) != wished.values[key]}
                kinds = {gpu.values.get(key, ("", None))[0] for key in unlike}
                number = unlike <= {"used_mib", "total_mib"} and kinds <= {"int", "NoneType"}
                memory = (
                    ('== "[N/A]"', "int(")
                    if number
                    else ("last split(",)
                    if unlike == {"name"}
                    else ()
                )
                # What is as wrong in the usual texts belongs to their check.
                about = "reads_every_gpu" if gpu in usual else ""
                raise Failed(
                    f"{right.text!r} gave {gpu}", str(wished), at=elsewhere or memory, about=about
                )


@read_nvidia_smi.check(points=0.25)
def reads_every_gpu(seen: Seen, wanted: Seen) -> None:
    """One dict per GPU, in the order of the lines, with its name and its numbers as ints."""
    _same_gpus(seen, wanted, "one", "several")


@read_nvidia_smi.check(points=0.25)
def reads_missing_values(seen: Seen, wanted: Seen) -> None:
    """`[N/A]` becomes None."""
    _same_gpus(seen, wanted, "unknown")


@read_nvidia_smi.check(points=0.25)
def skips_blank_lines(seen: Seen, wanted: Seen) -> None:
    """Empty lines are skipped; an empty text gives an empty list."""
    _same_gpus(seen, wanted, "blank", "nothing")
