"""What is seen with a device and what without?

Every solution of three exercises, judged by gpudojo and by plain tests.

The plain tests are the claims that the peers are compared with (`peers/claims.py`): careful ones,
on CPU tensors. The solutions are those of `tests/day8`, right ones in many spellings and wrong ones
with one mistake each; gpudojo's own tests hold it to all of them, so that its column is no surprise
and the other is the news. Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench_peers import DojoOnAllCores
from benchmarks.peers.assignment import KINDS, Submission, one_of_each_solution, write_folder
from benchmarks.peers.tool import CLAIMS, Graded, Verdict, copy_beside_tests
from benchmarks.tables import Table, benchmark_parser, format_ratio

WORDS = {
    "right": "right solutions that pass",
    "values": "wrong values, types or modes that are caught",
    "placement": "wrong placement on a device that is caught",
    "speed": "loops over pixels that are caught",
}


def grade_by_plain_tests(known: Sequence[Submission], place: Path) -> Graded:
    """The verdicts that a grader without a device reaches."""
    copy_beside_tests((*CLAIMS, "student.py", "claims_forked.py"), place / "tests")
    folders = [write_folder(submission, place / "class") for submission in known]
    out = place / "out"
    out.mkdir()
    words = [
        sys.executable,
        str(place / "tests" / "claims_forked.py"),
        str(out),
        *map(str, folders),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )
    graded = Graded()
    for submission in known:
        report = out / f"{submission.name}.json"
        failed = (
            tuple(json.loads(report.read_text(encoding="utf-8")))
            if report.exists()
            else ("no result",)
        )
        graded.verdicts[submission.name] = Verdict(not failed, failed)
    return graded


def table_of_verdicts(known: Sequence[Submission], graded: dict[str, Graded]) -> Table:
    made = Table(
        "What is seen with a device, and what without", ("what", "solutions", *graded, "ratio")
    )
    for kind in ("right", *KINDS):
        several = [s for s in known if s.kind == kind]
        agreed = [
            sum((g.verdicts[s.name].full is True) == (kind == "right") for s in several)
            for g in graded.values()
        ]
        ratio = "–"
        if agreed[0]:
            ratio = format_ratio(agreed[1] / agreed[0])
        made.add(WORDS[kind], str(len(several)), *map(str, agreed), ratio)
    return made


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--details", action="store_true", help="list what the plain tests were wrong about"
    )
    asked = parser.parse_args()
    known = one_of_each_solution()
    with tempfile.TemporaryDirectory(prefix="verdicts-") as place:
        dojo = DojoOnAllCores(Path(place) / "dojo", Path(sys.executable))
        dojo.prepare(known)
        graded = {"gpudojo": dojo.grade(known)}
        graded["plain tests on the CPU"] = grade_by_plain_tests(known, Path(place) / "plain")
    table_of_verdicts(known, graded).show(asked.markdown)
    if asked.details:
        for name, found in graded.items():
            for submission in known:
                verdict = found.verdicts[submission.name]
                if (verdict.full is True) != (submission.kind == "right"):
                    print(
                        f"{name}: {submission.origin} ({submission.kind}): "
                        f"{', '.join(verdict.failed) or 'passed'}"
                    )


if __name__ == "__main__":
    main()
