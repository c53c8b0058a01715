"""Finds and reads the lessons of exercises: Markdown files with snippets that are run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpudojo.model.catalogue import day_of_exercise, registered_days

if TYPE_CHECKING:
    from gpudojo.model.exercise import Exercise

LESSONS_FOLDER: Final = "lessons"
SETUP: Final = "setup"
_COMMENT: Final = re.compile(r"(?m)^<!-- .*? -->\n")
_ANSWER: Final = re.compile(r"<details><summary>Answer</summary>\s*(.*?)\s*</details>\n", re.S)
_FENCE: Final = re.compile(r"(?ms)^```python\n(.*?)^```\n")
_SNIPPET: Final = re.compile(
    r"(?ms)^<!-- run: (?P<name>\w+)(?P<options>[^\n]*?) -->\n```python\n(?P<code>.*?)^```\n"
    r"(?:```text\n(?P<recorded>.*?)^```\n)?"
)


@dataclass(frozen=True)
class Snippet:
    """Code of a lesson that is run.

    In the lesson it is `<!-- run: NAME OPTIONS -->`, a Python block, then what was recorded. Those
    called `setup` are run before each of the others, and nothing is shown of them. The options are
    words such as `timeline`, `gpus=2` and `memory=64MiB`.
    """

    name: str
    options: dict[str, str]
    code: str
    recorded: str | None
    line: int  # of its first line of code in the lesson
    end: int  # where the code's block ends in the text
    after: int  # where what was recorded ends


def lesson_path(day: str, stem: str) -> Path | None:
    """The file of an exercise's lesson; None where it has none.

    Raises KeyError for an unknown day.
    """
    folder = registered_days()[day].folder
    path = folder / LESSONS_FOLDER / f"{stem}.md"
    if path.is_file():
        return path
    return None


def has_lesson(exercise: Exercise) -> bool:
    """True if there is a lesson on an exercise."""
    day = day_of_exercise(exercise)
    return day is not None and lesson_path(day, exercise.stem) is not None


def lesson_of(exercise: Exercise, folded: bool = False) -> str | None:
    """The lesson of an exercise as Markdown. Returns None where it has none.

    With `folded`, each answer stands in `<details>`; else all of them at the end. Raises OSError
    where the file cannot be read.
    """
    day = day_of_exercise(exercise)
    path = None
    if day is not None:
        path = lesson_path(day, exercise.stem)
    if path is None:
        return None
    return lesson_text(path.read_text(encoding="utf-8"), folded)


def lesson_text(source: str, folded: bool) -> str:
    """The text that students read: without the marks of snippets.

    It has no HTML, for a terminal: the answers stand at the end, below a line. With `folded`, each
    answer stands in `<details>` where it is.
    """
    text = _COMMENT.sub("", source)
    if folded:  # with empty lines, which some readers of Markdown need beside HTML
        return _ANSWER.sub(r"\n<details><summary>Answer</summary>\n\n\1\n\n</details>\n", text)
    answers = [answer.strip() for answer in _ANSWER.findall(text)]
    if not answers:
        return text
    without_answers = _ANSWER.sub("", text).rstrip()
    lines = [f"{number}. {answer}" for number, answer in enumerate(answers, 1)]
    numbered = "\n".join(lines)
    return f"{without_answers}\n\n---\n\n## Answers\n\n{numbered}\n"


def snippets_in(source: str) -> list[Snippet]:
    """The snippets of a lesson's source, in order."""
    found = []
    for match in _SNIPPET.finditer(source):
        options = {}
        for word in match["options"].split():
            name, _, value = word.partition("=")
            options[name] = value
        snippet = Snippet(
            name=match["name"],
            options=options,
            code=match["code"],
            recorded=match["recorded"],
            line=_line_at(source, match.start("code")),
            end=match.end("code") + len("```\n"),
            after=match.end(),
        )
        found.append(snippet)
    return found


def lines_outside_snippets(source: str) -> list[int]:
    """The line numbers at which Python blocks of a lesson begin that no mark makes snippets."""
    marked = {snippet.line for snippet in snippets_in(source)}
    lines = [_line_at(source, match.start(1)) for match in _FENCE.finditer(source)]
    return [line for line in lines if line not in marked]


def _line_at(text: str, position: int) -> int:
    """The number of the line in which a character stands."""
    return text.count("\n", 0, position) + 1
