"""A lesson is one Markdown source, shown with folded answers in pages, and without HTML in a
terminal.
"""

from __future__ import annotations

import re

import pytest
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.exercise import Exercise
from gpudojo.model.lessons import lesson_of, lesson_text, lines_outside_snippets, snippets_in

SOURCE = """\
# 01 A title

<!-- run: setup -->
```python
import torch
```

<!-- run: wrong gpus=2 timeline -->
```python
x = 1
```
```text
old
```

**1.** Why?
<details><summary>Answer</summary>

Because of `x`.
</details>

**2.** How?
<details><summary>Answer</summary> So. </details>
"""


def test_in_a_terminal_answers_stand_below_a_line_and_there_is_no_html() -> None:
    text = lesson_text(SOURCE, folded=False)
    before, after = text.split("\n---\n")
    assert "**1.** Why?\n\n**2.** How?" in before
    assert "Because" not in before
    assert after == "\n## Answers\n\n1. Because of `x`.\n2. So.\n"
    assert "<" not in text


def test_on_a_page_answers_are_folded_and_marks_of_snippets_are_gone() -> None:
    text = lesson_text(SOURCE, folded=True)
    assert "<!--" not in text
    assert (
        "Why?\n\n<details><summary>Answer</summary>\n\nBecause of `x`.\n\n</details>\n\n**2.**"
        in text
    )


def test_snippets_have_names_options_and_what_was_recorded() -> None:
    setup, wrong = snippets_in(SOURCE)
    assert (setup.name, setup.options, setup.code, setup.recorded) == (
        "setup",
        {},
        "import torch\n",
        None,
    )
    assert (wrong.name, wrong.options, wrong.recorded) == (
        "wrong",
        {"gpus": "2", "timeline": ""},
        "old\n",
    )
    assert SOURCE.splitlines()[wrong.line - 1] == "x = 1"
    assert SOURCE[wrong.end : wrong.after] == "```text\nold\n```\n"


def test_python_that_no_mark_makes_a_snippet_is_found() -> None:
    assert lines_outside_snippets(SOURCE) == []
    assert lines_outside_snippets(SOURCE.replace("<!-- run: setup -->\n", "")) == [4]


def test_an_exercise_without_a_lesson_has_none() -> None:
    assert lesson_of(Exercise("99_unknown", "Unknown", points=1)) is None


@pytest.mark.parametrize("exercise", exercises_of("day8"), ids=lambda exercise: exercise.number)
def test_every_lesson_has_its_parts_and_fits_a_terminal(exercise: Exercise) -> None:
    text = lesson_of(exercise) or ""
    assert text.startswith(f"# {exercise.number} {exercise.title}\n")
    parts = ["The idea", "Why it matters on a GPU", "An example", "Check yourself", "Answers"]
    assert re.findall(r"(?m)^## (.*)$", text) == parts
    code = re.findall(r"(?ms)^```\w+\n(.*?)^```$", text)
    assert max(len(line) for block in code for line in block.splitlines()) <= 76
    assert len(lesson_of(exercise, folded=True).splitlines()) <= 105  # type: ignore[union-attr]
