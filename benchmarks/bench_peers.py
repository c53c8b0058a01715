"""How fast is a class graded next to other graders, and what do they see?

One table of ratios from one run.

    python -m benchmarks.bench_peers --make-environments DIR     # once: a few minutes, about 3 GB
    python -m benchmarks.bench_peers --environments DIR

The same three exercises from the same students are graded by `dojo grade`, and with pytest,
nbgrader, otter-grader, gradescope-utils and check50, which all test the same claims
(`peers/claims.py`) with one job and one thread. Rounds are interleaved: each tool grades a part of
the class, then each the next part; only `dojo grade`, which pays its start once a class, gets the
whole class every time. Processor time hardly depends on what else a machine is doing; wall-clock
time does. Linux only.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import environments
from benchmarks.peers.assignment import KINDS, Submission, drawn_class, solved_submission
from benchmarks.peers.file_tools import Check50, Dojo, Gradescope, Pytest
from benchmarks.peers.notebook_tools import Nbgrader, Otter
from benchmarks.peers.tool import Graded, Tool
from benchmarks.tables import Table, benchmark_parser, core_count, format_ratio

MIB = 1024 * 1024


class DojoOnAllCores(Dojo):
    name = f"dojo grade, {core_count()} jobs"
    jobs = core_count()


TOOLS: tuple[type[Tool], ...] = (Dojo, DojoOnAllCores, Pytest, Gradescope, Check50, Nbgrader, Otter)
COLUMNS = (
    "grader",
    "s each",
    "ratio",
    "CPU s each",
    "ratio",
    "MiB",
    "right passed",
    *KINDS,
    "isolation by default",
)


def split_class(known: Sequence[Submission], rounds: int) -> list[Sequence[Submission]]:
    """The class in so many parts.

    Which students are in which does not depend on what they handed in.
    """
    return [known[number::rounds] for number in range(rounds)]


def count_agreements(known: Sequence[Submission], graded: Graded) -> list[str]:
    """How many right solutions got full marks, and how many wrong ones of each kind did not."""
    cells = []
    for kind in ("right", *KINDS):
        asked = [
            graded.verdicts[s.name].full is True
            for s in known
            if s.kind == kind and s.name in graded.verdicts
        ]
        if kind == "right":
            agreed = sum(asked)
        else:
            agreed = asked.count(False)
        cells.append(f"{agreed} of {len(asked)}" if asked else "–")
    return cells


def describe_disagreements(known: Sequence[Submission], graded: Graded) -> list[str]:
    """Right ones that did not pass, and others that did."""
    found = []
    for submission in known:
        verdict = graded.verdicts.get(submission.name)
        if verdict is not None and (verdict.full is True) != (submission.kind == "right"):
            said = "got full marks"
            if submission.kind == "right":
                said = f"not passed: {', '.join(verdict.failed)}"
            found.append(f"{submission.name} ({submission.kind}: {submission.origin}) {said}")
    return found


def comparison_table(
    known: Sequence[Submission],
    measured: dict[str, Graded],
    absent: dict[str, str],
    rounds: int,
    others: int,
) -> Table:
    """All of it; the first tool is what the others are compared with, which grade only so many."""
    made = Table(
        f"The same class of {len(known)}, graded side by side", COLUMNS, words=(COLUMNS[-1],)
    )
    base = None
    for tool in TOOLS:
        if tool.name in absent:
            made.add(tool.name, *["–"] * (len(COLUMNS) - 2), absent[tool.name])
            continue
        graded = measured[tool.name]
        if tool.whole:
            many = len(known) * rounds
        else:
            many = others
        wall = graded.wall / many
        cpu = graded.cpu / many
        base = base or (wall, cpu)
        made.add(
            tool.name,
            f"{wall:.2f}",
            format_ratio(wall / base[0]),
            f"{cpu:.2f}",
            format_ratio(cpu / base[1]),
            f"{graded.peak / MIB:.0f}",
            *count_agreements(known, graded),
            tool.isolation,
        )
    stubs = [s for s in known if s.kind == "to do"]
    full = {
        name: {student for student, found in each.verdicts.items() if found.full}
        for name, each in measured.items()
    }
    fooled = [name for name, students in full.items() if students & {stub.name for stub in stubs}]
    made.notes = [
        (
            "One job and one thread each, but for the second row; starts included. Ratios are to "
            "`dojo grade`."
        )
        + (f" The others grade {others} of them." if others < len(known) else ""),
        "Right submissions that passed, and mistakes that were caught, by what they are about.",
        (
            "The class is drawn from gpudojo's own corpus, so that its own verdicts are right by "
            "construction."
        ),
        (
            "The peers test values, types, modes and times on CPU tensors: they have no device to "
            "see placement on."
        ),
        f"{len(stubs)} more have stubs left: "
        + (f"full marks from {', '.join(fooled)}." if fooled else "all noticed."),
    ]
    return made


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--environments", type=Path, metavar="DIR", help="where the peers' environments are"
    )
    parser.add_argument(
        "--make-environments", type=Path, metavar="DIR", help="make them there first"
    )
    parser.add_argument("--right", type=int, default=4, help="right submissions (4)")
    parser.add_argument("--wrong", type=int, default=9, help="submissions with one mistake (9)")
    parser.add_argument("--unfinished", type=int, default=1, help="submissions with stubs left (1)")
    parser.add_argument("--others", type=int, help="how many of them the other tools grade (all)")
    parser.add_argument("--rounds", type=int, default=2, help="parts the class is graded in (2)")
    parser.add_argument("--seed", type=int, default=8, help="draws the class (8)")
    parser.add_argument(
        "--only", action="append", help="only tools with this in their name; may be given again"
    )
    parser.add_argument(
        "--details", action="store_true", help="list the submissions a tool was wrong about"
    )
    asked = parser.parse_args()
    if asked.make_environments:
        environments.make_environments(asked.make_environments)
        asked.environments = asked.environments or asked.make_environments
    known = drawn_class(asked.right, asked.wrong, asked.unfinished, asked.seed)
    fewer = known[: asked.others]  # they are in random order
    base = Path(tempfile.mkdtemp(prefix="peers-"))
    absent: dict[str, str] = {}
    tools: list[Tool] = []
    try:
        for number, kind in enumerate(TOOLS):
            if (
                asked.only
                and kind is not Dojo
                and not any(word in kind.name for word in asked.only)
            ):
                absent[kind.name] = "not asked for"
                continue
            try:
                tools.append(_ready_tool(kind, base / str(number), asked.environments, known))
            except (RuntimeError, OSError) as error:
                absent[kind.name] = str(error)
        measured = {tool.name: Graded() for tool in tools}
        for part in split_class(fewer, asked.rounds):
            for tool in list(tools):
                print(
                    f"{tool.name}: {len(known if tool.whole else part)} submissions",
                    file=sys.stderr,
                    flush=True,
                )
                try:
                    measured[tool.name].merge(tool.grade(known if tool.whole else part))
                except (RuntimeError, OSError) as error:
                    absent[tool.name] = str(error)
                    tools.remove(tool)
        there = {name: graded for name, graded in measured.items() if name not in absent}
        comparison_table(known, there, absent, asked.rounds, len(fewer)).show(asked.markdown)
        if asked.details:
            for name, graded in there.items():
                print(
                    f"\n{name}:",
                    *(describe_disagreements(known, graded) or ["agrees about all of them"]),
                    sep="\n  ",
                )
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _ready_tool(
    kind: type[Tool], place: Path, where: Path | None, known: Sequence[Submission]
) -> Tool:
    """A tool that is ready, or a sentence that says why there is none."""
    if not kind.package:
        tool = kind(place, Path(sys.executable))
    else:
        reason = environments.reason_of_absence(where, kind.package)
        if where is None or reason:
            raise RuntimeError(reason)
        tool = kind(place, environments.python_of(where.absolute(), kind.package))
    if tool.whole:
        tool.prepare(known)
        return tool
    # A harness that does not work fails everything, and would seem to catch every mistake.
    proof = solved_submission()
    tool.prepare([*known, proof])
    verdict = tool.grade([proof]).verdicts[proof.name]
    if verdict.full is not True:
        raise RuntimeError(f"it gave the reference no full marks here: {', '.join(verdict.failed)}")
    return tool


if __name__ == "__main__":
    main()
