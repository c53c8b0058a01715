"""Finds the lessons of a day, and makes their text for a terminal, a notebook or a page.

A lesson is a Markdown file in the folder `lessons` beside the exercises' modules, with the exercise's name. A day may
have none. In the source, comments mark the snippets to run (see `Snippet`), and answers stand in `<details>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.model.catalogue import day_with, registered
from gpudojo.model.exercise import Exercise

FOLDER: Final = "lessons"
SETUP: Final = "setup"
_COMMENT: Final = re.compile(r"(?m)^<!-- .*? -->\n")
_ANSWER: Final = re.compile(r"<details><summary>Answer</summary>\n\n(.*?)\n</details>\n", re.S)
_FENCE: Final = re.compile(r"(?ms)^```python\n(.*?)^```\n")
_SNIPPET: Final = re.compile(
    r"(?ms)^<!-- run: (?P<name>\w+)(?P<options>[^\n]*?) -->\n```python\n(?P<code>.*?)^```\n"
    r"(?:<!-- recorded -->\n```text\n(?P<recorded>.*?)^```\n)?"
)


@dataclass(frozen=True)
class Snippet:
    """Code of a lesson that is run: `<!-- run: NAME OPTIONS -->`, a Python block, then what was recorded.

    Those called `setup` are run before each of the others, and nothing is shown of them. The options are words such as
    `timeline`, `gpus=2` and `memory=64MiB`.
    """

    name: str
    options: dict[str, str]
    code: str
    recorded: str | None
    line: int  # of its first line of code in the lesson
    end: int  # where the code's block ends in the text
    after: int  # where what was recorded ends


def lesson_path(day: str, stem: str) -> Path | None:
    """The file of an exercise's lesson; None where it has none."""
    path = registered()[day].folder / FOLDER / f"{stem}.md"
    return path if path.is_file() else None


def lesson_of(exercise: Exercise, folded: bool = False) -> str | None:
    """The lesson of an exercise as Markdown; None where it has none.

    Without HTML, for a terminal: the answers stand at the end, below a line. With `folded`, each stands in `<details>`.
    """
    day = day_with(exercise)
    path = None if day is None else lesson_path(day, exercise.stem)
    return None if path is None else shown(path.read_text(encoding="utf-8"), folded)


def shown(source: str, folded: bool) -> str:
    """The text that students read: without the marks of snippets."""
    text = _COMMENT.sub("", source)
    if folded:  # with empty lines, which some readers of Markdown need beside HTML
        return _ANSWER.sub(r"\n<details><summary>Answer</summary>\n\n\1\n\n</details>\n", text)
    answers = [answer.strip() for answer in _ANSWER.findall(text)]
    if not answers:
        return text
    listed = "\n".join(f"{number}. {answer}" for number, answer in enumerate(answers, 1))
    return f"{_ANSWER.sub('', text).rstrip()}\n\n---\n\n## Answers\n\n{listed}\n"


def snippets(source: str) -> list[Snippet]:
    """The snippets of a lesson's source, in order."""
    return list(_snippets(source))


def _snippets(source: str) -> Iterator[Snippet]:
    for match in _SNIPPET.finditer(source):
        words = (word.partition("=") for word in match["options"].split())
        options = {name: value for name, _, value in words}
        end, line = match.end("code") + len("```\n"), source.count("\n", 0, match.start("code")) + 1
        yield Snippet(match["name"], options, match["code"], match["recorded"], line, end, match.end())


def never_run(source: str) -> list[int]:
    """The lines of Python blocks in a lesson that no mark makes snippets."""
    marked = {snippet.line for snippet in _snippets(source)}
    starts = (source.count("\n", 0, match.start(1)) + 1 for match in _FENCE.finditer(source))
    return [line for line in starts if line not in marked]
