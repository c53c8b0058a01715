"""What is graded?

Three exercises of Day 8, handed in by a class made from the repository's own solutions.

Everybody has all three. A right submission has one of them in another spelling, from
`tests/day8/right`; a wrong one has one mistake, from `tests/day8/wrong`; the rest is the
reference's. Some have stubs left. Which ones is drawn, as many of each kind of mistake, so that
nobody's strength is picked out. The same seed draws the same class.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nbformat
from gpudojo.authoring.kept_solutions import HEADER
from gpudojo.authoring.sample_class import ATTACK

ROOT: Final = Path(__file__).resolve().parents[2]
FUNCTIONS: Final = {
    "01_checking_device": ("select_device",),
    "04_modifying_training_loop_gpu": ("train_epoch",),
    "06_vectorizing_pixel_loops": ("grayscale", "recolor", "nearest_color"),
}
# What a mistake is about, by the check it fails: where things are, or how fast, or else what comes
# out.
PLACEMENT: Final = frozenset(
    (
        "uses_the_device_it_is_given",
        "moves_the_model_once",
        "computes_the_loss_on_the_device",
        "stays_on_the_device",
    )
)
SPEED: Final = frozenset(("no_loop_over_pixels", "faster_than_the_loop"))
DEVICES: Final = frozenset(
    "inputs-on-cpu targets-on-cpu model-not-moved result-thrown-away hard-coded-cuda "
    "device-index-dropped "
    "numpy-on-device-tensor".split()
)
KINDS: Final = ("values", "placement", "speed")
MARKS: Final = ("# BEGIN SOLUTION", "# END SOLUTION")


@dataclass(frozen=True)
class Submission:
    """One student's three files. `kind` is "right", "to do", or what the one mistake is about."""

    name: str
    kind: str
    origin: str
    files: dict[str, str]  # by the exercise's stem


def kind_of(source: str) -> str:
    """What a wrong solution's mistake is about, from its first line."""
    match = HEADER.match(source.splitlines()[0])
    if match is None:
        raise ValueError(f"no header: {source.splitlines()[0]}")
    check = match[2]
    misconception = match[3]
    if check in SPEED:
        return "speed"
    return (
        "placement"
        if check in PLACEMENT or (check == "runs" and misconception in DEVICES)
        else "values"
    )


def _solutions(kind: str, stem: str) -> dict[str, str]:
    found = {}
    for path in sorted((ROOT / "tests" / "day8" / kind / stem).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        # What must stand first cannot be put below the reference; an attack on a grader is no
        # honest mistake.
        if "from __future__" not in source and not ATTACK.search(source):
            found[path.stem] = source
    return found


def reference(stem: str) -> str:
    """The reference as a student would hand it in: without its marks, and its demonstration."""
    source = (ROOT / "reference" / "day8" / f"{stem}.py").read_text(encoding="utf-8")
    lines = source.partition('\nif __name__ == "__main__":')[0].splitlines()
    return "\n".join(line for line in lines if line.strip() not in MARKS)


def stub(stem: str) -> str:
    source = (ROOT / "exercises" / "day8" / f"{stem}.py").read_text(encoding="utf-8")
    return source.partition('\nif __name__ == "__main__":')[0]


def _with(stem: str, source: str) -> dict[str, str]:
    """Some functions of one exercise, and the reference's for all others.

    Of two definitions the last counts.
    """
    return {other: reference(other) for other in FUNCTIONS} | {
        stem: f"{reference(stem)}\n\n{source}"
    }


def submissions(right: int, wrong: int, unfinished: int, seed: int) -> list[Submission]:
    """A class in random order."""
    dice = random.Random(f"peers {seed}")
    spellings = {stem: _shuffled(dice, _solutions("right", stem)) for stem in FUNCTIONS}
    made: list[tuple[str, str, dict[str, str]]] = []
    for number in range(right):
        stem = list(FUNCTIONS)[number % len(FUNCTIONS)]
        name, source = spellings[stem][number // len(FUNCTIONS) % len(spellings[stem])]
        made.append(("right", f"{stem}/{name}", _with(stem, source)))
    pools = {kind: _in_turns(dice, kind) for kind in KINDS}
    for number in range(wrong):
        kind = KINDS[number % len(KINDS)]
        stem, name, source = pools[kind][number // len(KINDS) % len(pools[kind])]
        made.append((kind, f"{stem}/{name}", _with(stem, source)))
    for number in range(unfinished):
        done = list(FUNCTIONS)[number % len(FUNCTIONS)]
        made.append(
            (
                "to do",
                f"only {done}",
                {s: reference(s) if s == done else stub(s) for s in FUNCTIONS},
            )
        )
    dice.shuffle(made)
    width = len(str(len(made)))
    return [
        # A name in the file: no two submissions are the same, as in a real class, and nothing is
        # known from before.
        Submission(
            name, kind, origin, {stem: f"# {name}\n{source}" for stem, source in files.items()}
        )
        for number, (kind, origin, files) in enumerate(made, 1)
        for name in (f"student{number:0{width}}",)
    ]


def solved() -> Submission:
    """The references: what every tool must give full marks before anybody trusts its verdicts."""
    return Submission("solved", "right", "reference", {stem: reference(stem) for stem in FUNCTIONS})


def everything() -> list[Submission]:
    """Each right and each wrong solution of the three exercises once.

    The other exercises are the reference's.
    """
    made = []
    for stem in FUNCTIONS:
        for tried in ("right", "wrong"):
            for name, source in _solutions(tried, stem).items():
                kind = "right" if tried == "right" else kind_of(source)
                made.append(
                    Submission(
                        f"{stem[:2]}-{tried}-{name}", kind, f"{stem}/{name}", _with(stem, source)
                    )
                )
    return made


def _shuffled(dice: random.Random, solutions: dict[str, str]) -> list[tuple[str, str]]:
    pairs = sorted(solutions.items())
    dice.shuffle(pairs)
    return pairs


def _in_turns(dice: random.Random, kind: str) -> list[tuple[str, str, str]]:
    """Mistakes of one kind, from one exercise after another as long as it has some."""
    several = {stem: _shuffled(dice, _solutions("wrong", stem)) for stem in FUNCTIONS}
    left = {
        stem: [pair for pair in pairs if kind_of(pair[1]) == kind]
        for stem, pairs in several.items()
    }
    found = []
    while any(left.values()):
        found += [(stem, *pairs.pop(0)) for stem, pairs in left.items() if pairs]
    return found


def as_folder(submission: Submission, place: Path) -> Path:
    folder = place / submission.name
    folder.mkdir(parents=True)
    for stem, source in submission.files.items():
        (folder / f"{stem}.py").write_text(source, encoding="utf-8")
    return folder


def cell_of(stem: str) -> str:
    """The identifier of an exercise's cell: tools want a word that begins with a letter."""
    return re.sub(r"^\d+_", "", stem)


def as_notebook(
    files: dict[str, str], metadata: dict[str, dict[str, object]] | None = None
) -> nbformat.NotebookNode:
    """A cell for each exercise, with what a tool wants to know of it."""
    cells = []
    for stem, source in files.items():
        cell = nbformat.v4.new_code_cell(source, id=cell_of(stem)[:64])
        cell["metadata"].update((metadata or {}).get(stem, {}))
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )
