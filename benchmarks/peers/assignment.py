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
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

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
    "device-index-dropped numpy-on-device-tensor".split()
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
    if check in PLACEMENT:
        return "placement"
    if check == "runs" and misconception in DEVICES:
        return "placement"
    return "values"


class Solution(NamedTuple):
    """A kept solution of some functions of an exercise."""

    stem: str  # the exercise's
    name: str
    source: str

    @property
    def origin(self) -> str:
        return f"{self.stem}/{self.name}"


def solutions_of(folder: str, stem: str) -> list[Solution]:
    """The kept solutions of an exercise, right or wrong, that can be handed in here."""
    solutions = []
    for path in sorted((ROOT / "tests" / "day8" / folder / stem).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        # What must stand first cannot be put below the reference; an attack on a grader is no
        # honest mistake.
        if "from __future__" not in source and not ATTACK.search(source):
            solutions.append(Solution(stem, path.stem, source))
    return solutions


def reference_source(stem: str) -> str:
    """The reference as a student would hand it in: without its marks, and its demonstration."""
    lines = _without_demonstration(ROOT / "reference" / "day8" / f"{stem}.py").splitlines()
    return "\n".join(line for line in lines if line.strip() not in MARKS)


def stub_source(stem: str) -> str:
    """An exercise as it is handed out, without its demonstration."""
    return _without_demonstration(ROOT / "exercises" / "day8" / f"{stem}.py")


def _without_demonstration(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    return source.partition('\nif __name__ == "__main__":')[0]


def reference_files() -> dict[str, str]:
    """The references of all exercises, by stem."""
    return {stem: reference_source(stem) for stem in FUNCTIONS}


def _files_with(solution: Solution) -> dict[str, str]:
    """The references, and one solution below that of its exercise.

    Of two definitions the last counts.
    """
    files = reference_files()
    files[solution.stem] += f"\n\n{solution.source}"
    return files


class Draft(NamedTuple):
    """A submission that has no name yet."""

    kind: str
    origin: str
    files: dict[str, str]

    def with_name(self, name: str) -> Submission:
        """The submission, with its name in every file.

        So no two submissions are the same, as in a real class, and nothing is known from before.
        """
        files = {stem: f"# {name}\n{source}" for stem, source in self.files.items()}
        return Submission(name, self.kind, self.origin, files)


def drawn_class(right: int, wrong: int, unfinished: int, seed: int) -> list[Submission]:
    """A class in random order, with so many of each."""
    dice = random.Random(f"peers {seed}")
    stems = list(FUNCTIONS)
    drafts = []
    right_solutions = {stem: _in_random_order(dice, "right", stem) for stem in stems}
    for number in range(right):
        solutions = right_solutions[stems[number % len(stems)]]
        solution = solutions[number // len(stems) % len(solutions)]
        drafts.append(Draft("right", solution.origin, _files_with(solution)))
    mistakes = {kind: _mistakes_in_turns(dice, kind) for kind in KINDS}
    for number in range(wrong):
        kind = KINDS[number % len(KINDS)]
        solution = mistakes[kind][number // len(KINDS) % len(mistakes[kind])]
        drafts.append(Draft(kind, solution.origin, _files_with(solution)))
    for number in range(unfinished):
        solved = stems[number % len(stems)]
        files = {stem: stub_source(stem) for stem in stems}
        files[solved] = reference_source(solved)
        drafts.append(Draft("to do", f"only {solved}", files))
    dice.shuffle(drafts)
    width = len(str(len(drafts)))
    return [draft.with_name(f"student{number:0{width}}") for number, draft in enumerate(drafts, 1)]


def solved_submission() -> Submission:
    """The references: what every tool must give full marks before anybody trusts its verdicts."""
    return Submission("solved", "right", "reference", reference_files())


def one_of_each_solution() -> list[Submission]:
    """Each right and each wrong solution of the three exercises once.

    The other exercises are the reference's.
    """
    submissions = []
    for stem in FUNCTIONS:
        for folder in ("right", "wrong"):
            for solution in solutions_of(folder, stem):
                if folder == "right":
                    kind = "right"
                else:
                    kind = kind_of(solution.source)
                name = f"{stem[:2]}-{folder}-{solution.name}"
                files = _files_with(solution)
                submissions.append(Submission(name, kind, solution.origin, files))
    return submissions


def _in_random_order(dice: random.Random, folder: str, stem: str) -> list[Solution]:
    solutions = solutions_of(folder, stem)
    dice.shuffle(solutions)
    return solutions


def _mistakes_in_turns(dice: random.Random, kind: str) -> list[Solution]:
    """Mistakes of one kind, from one exercise after another as long as it has some."""
    by_exercise = []
    for stem in FUNCTIONS:
        mistakes = _in_random_order(dice, "wrong", stem)
        by_exercise.append([mistake for mistake in mistakes if kind_of(mistake.source) == kind])
    in_turns = []
    for turn in zip_longest(*by_exercise):
        in_turns += [mistake for mistake in turn if mistake is not None]
    return in_turns


def write_folder(submission: Submission, parent: Path) -> Path:
    """Write a submission's files into a new folder with its name, and return the folder."""
    folder = parent / submission.name
    folder.mkdir(parents=True)
    for stem, source in submission.files.items():
        (folder / f"{stem}.py").write_text(source, encoding="utf-8")
    return folder


def cell_of(stem: str) -> str:
    """The identifier of an exercise's cell: tools want a word that begins with a letter."""
    return re.sub(r"^\d+_", "", stem)


def notebook_of(
    files: dict[str, str], metadata: dict[str, dict[str, object]] | None = None
) -> nbformat.NotebookNode:
    """A notebook with a cell for each exercise, with what a tool wants to know of it."""
    cells = []
    for stem, source in files.items():
        cell = nbformat.v4.new_code_cell(source, id=cell_of(stem)[:64])
        cell["metadata"].update((metadata or {}).get(stem, {}))
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )
