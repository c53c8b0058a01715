"""What does an instructor see of a class? How it went, what was not understood, and whom to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from graders.curriculum import MISCONCEPTIONS
from graders.report.charts import histogram, scatter
from graders.report.evidence import Archive
from graders.report.tally import Mistake, Tally
from graders.report.templating import page
from graders.report.texts import counted
from graders.results import Status

MOST_CHECKS: Final = 15  # shown at once; the others are folded away
MOST_SLOW: Final = 8  # named beside the picture of time and memory
MANY: Final = 200  # submissions, above which a browser lays out the table only when it comes into sight


@dataclass(frozen=True)
class Example:
    """A misconception, and what somebody wrote."""

    mistake: Mistake
    name: str
    why: str
    code: list[tuple[int, str, bool]]
    happened: str
    expected: str


def class_page(tally: Tally, archive: Archive, students: bool, anonymous: bool) -> str:
    """The page's text; with `students`, each name is a link to the student's own page."""
    graded = [line for line in tally.lines if line.status is Status.GRADED]
    ran = tally.slowest
    return page(
        "class.html",
        "class.js",
        tally=tally,
        header=tally.header,
        students=students,
        anonymous=anonymous,
        graded=len(graded),
        statuses=sorted({line.status.value for line in tally.lines}),
        exercises=tally.reached,
        histogram=histogram(tally.scores, tally.header.max_score) if tally.lines else Markup(""),
        scatter=scatter([(line.seconds, line.peak_bytes, line.status.value.replace(" ", "-")) for line in ran]),
        slowest=ran[:MOST_SLOW],
        ran=len(ran),
        hardest=tally.hardest,
        at_once=MOST_CHECKS,
        many=MANY,
        examples=[_example(mistake, archive) for mistake in tally.ranked],
        missing=[f"{layer}: {why}" for layer, why in sorted(tally.header.layers.items()) if why],
        heading=f"{tally.header.day}: {counted(len(tally.lines), 'submission')}",
    )


def _example(mistake: Mistake, archive: Archive) -> Example:
    says = mistake.person.says
    known = MISCONCEPTIONS.get(mistake.key)
    lines = archive.known(mistake.record).code(mistake.check) if mistake.record else []
    return Example(
        mistake,
        known.name if known else mistake.key,
        known.why if known else "",
        [(number, says(text), marked) for number, text, marked in lines],
        says(mistake.check.happened or mistake.check.message),
        says(mistake.check.expected),
    )
