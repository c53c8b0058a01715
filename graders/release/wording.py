"""How does a docstring read in a notebook? Title and contract as Markdown, with the size and the reading marked."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from graders.curriculum.catalogue import DAYS, day
from graders.release.sections import Task

HOW: Final = "Fill in the cells that say `raise NotImplementedError`, run them, and run the check below each."
HOW_ANSWERS: Final = "Fill in the cell, run it, and run the check below it."
_RUN: Final = re.compile(r"^(Run|Check) me: .*$", re.M)
_SIZE: Final = re.compile(r"(About )?\d+ lines?\.")
_READING: Final = re.compile(r"^(?P<size>.*?)\s*Read: (?P<address>https://\S+)$", re.S)


def title_text(docstring: str, stem: str, level: int = 1) -> str:
    """The first cell of an exercise: its title, and what to do."""
    first, _, rest = docstring.partition("\n")
    number = stem.partition("_")[0]
    heading = f"{'#' * level} {number if number.isdecimal() else ''} {first.removesuffix('.')}".replace("  ", " ")
    prose = [_flowing(block) for block in _RUN.sub("", rest).strip().split("\n\n") if block.strip()]
    return "\n\n".join([heading, *prose, *_about(stem, level)])


def _about(stem: str, level: int) -> list[str]:
    exercise = next((e for name in DAYS for e in day(name) if e.stem == stem), None)
    functions = exercise is None or any(function.name.islower() for function in exercise.functions)
    points = [] if exercise is None else [f"{exercise.points} points."]
    return [" ".join([*points, HOW if functions else HOW_ANSWERS])] if level == 1 else points


def task_text(task: Task) -> str:
    """The cell above a task: the contract, then how long it may get and what to read."""
    *contract, last = task.text.split("\n\n")
    if (found := _READING.match(_flowing(last))) is None:
        contract, size, reading = [*contract, last], "", ""
    else:
        size, reading = f"{found['size']} ", f"Read: <{found['address']}>"
        if _SIZE.fullmatch(found["size"]):
            size = f"*{found['size']}* "
    heading = f"### `{task.signature or task.name}`"
    blocks = [heading, *(_paragraph(block) for block in contract), f"{size}{reading}".strip()]
    return "\n\n".join(block for block in blocks if block)


def _paragraph(block: str) -> str:
    """Prose flows; a command on a line of its own stays as it is."""
    if re.fullmatch(r"[\w./-]+( --?[\w-]+(=\S+)?)+", block.strip()):
        return textwrap.indent(block.strip(), "    ")
    return _flowing(block)


def _flowing(block: str) -> str:
    # Outside of `code`, an asterisk or an angle bracket would be read as Markdown.
    pieces = re.split(r"(`[^`]*`)", " ".join(block.split()))
    return "".join(p if p.startswith("`") else re.sub(r"([*<\\])", r"\\\1", p) for p in pieces)
