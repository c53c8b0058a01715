"""How are files graded by dojo, by pytest, with gradescope-utils and by check50?

A command each, and its results.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import measure_command
from benchmarks.peers import assignment, verdicts
from benchmarks.peers.assignment import FUNCTIONS, ROOT, Submission
from benchmarks.peers.tool import (
    CLAIMS,
    HERE,
    Graded,
    Tool,
    Verdict,
    claims_and_functions,
    copy_beside_tests,
)

NAMES = [name for several in FUNCTIONS.values() for name in several]


def _read(path: Path) -> str | None:
    if path.exists() and path.stat().st_size:
        return path.read_text(encoding="utf-8")
    return None


class Folders(Tool):
    """What tools for files have in common: a folder for each student."""

    def prepare(self, known: Sequence[Submission]) -> None:
        for submission in known:
            assignment.write_folder(submission, self.place / "class")

    def folder(self, submission: Submission) -> Path:
        return self.place / "class" / submission.name


class Dojo(Folders):
    """`dojo grade` of the whole class, its start and the reference's own run included."""

    name = "dojo grade"
    isolation = "a fenced process each: no network, no files, limits"
    whole = True
    jobs = 1

    def grade(self, given: Sequence[Submission]) -> Graded:
        out = self.place / f"out{len(list(self.place.glob('out*')))}"
        only = [word for name in NAMES for word in ("--only", name)]
        command = [
            str(self.python),
            "-m",
            "gpudojo",
            "grade",
            str(self.place / "class"),
            "--out",
            str(out),
            "-q",
        ]
        run = measure_command([*command, "--jobs", str(self.jobs), *only], ROOT, self.environment())
        results = _read(out / "results.json")
        if results is None:
            raise RuntimeError(f"dojo grade gave no results: {run.output[-500:]}")
        graded = Graded(verdicts=verdicts.from_dojo(results, NAMES))
        graded.add(run)
        return graded

    def environment(self) -> dict[str, str]:
        return super().environment() | {"PYTHONPATH": str(ROOT)}


class OneByOne(Folders):
    """A process for each submission, one after another."""

    def grade(self, given: Sequence[Submission]) -> Graded:
        graded = Graded()
        for submission in given:
            report = self.place / f"{submission.name}.result"
            report.unlink(missing_ok=True)
            graded.add(
                measure_command(self.command(report), self.folder(submission), self.environment())
            )
            text = _read(report)
            graded.verdicts[submission.name] = (
                verdicts.NOTHING if text is None else self.verdict(text)
            )
        return graded

    def command(self, report: Path) -> list[str]:
        raise NotImplementedError

    def verdict(self, text: str) -> Verdict:
        raise NotImplementedError


class Pytest(OneByOne):
    name = package = "pytest"
    isolation = "none: a process each"

    def prepare(self, known: Sequence[Submission]) -> None:
        super().prepare(known)
        copy_beside_tests((*CLAIMS, "student.py"), self.place / "tests")
        shutil.copy(HERE / "claims_pytest.py", self.place / "tests" / "test_claims.py")
        (self.place / "tests" / "pytest.ini").write_text(
            "[pytest]\n", encoding="utf-8"
        )  # not one from further up

    def command(self, report: Path) -> list[str]:
        tests = str(self.place / "tests" / "test_claims.py")
        return [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--junit-xml",
            str(report),
            tests,
        ]

    def verdict(self, text: str) -> Verdict:
        return verdicts.from_junit(text, len(claims_and_functions()))


class Gradescope(OneByOne):
    """gradescope-utils as Gradescope runs it: a fresh process in the submission's folder."""

    name = package = "gradescope-utils"
    isolation = "none of its own; on Gradescope a container each"

    def prepare(self, known: Sequence[Submission]) -> None:
        super().prepare(known)
        copy_beside_tests((*CLAIMS, "student.py", "claims_gradescope.py"), self.place / "source")

    def command(self, report: Path) -> list[str]:
        return [str(self.python), str(self.place / "source" / "claims_gradescope.py"), str(report)]

    def verdict(self, text: str) -> Verdict:
        return verdicts.from_gradescope(text, len(claims_and_functions()))


class Check50(OneByOne):
    """check50 with checks from a folder.

    Its default, sending the work to its own servers, is not for this.
    """

    name = package = "check50"
    isolation = "locally none: a process and a folder for each check"
    jobs = 1

    def prepare(self, known: Sequence[Submission]) -> None:
        super().prepare(known)
        copy_beside_tests((*CLAIMS, "student.py"), self.place / "checks")
        shutil.copy(HERE / "claims_check50.py", self.place / "checks" / "__init__.py")
        (self.place / "checks" / ".cs50.yml").write_text(
            "check50:\n  checks: __init__.py\n", encoding="utf-8"
        )

    def command(self, report: Path) -> list[str]:
        checks = str(self.place / "checks")
        program = str(self.python.parent / "check50")
        return [
            program,
            "--dev",
            "--log-level",
            "error",
            "-o",
            "json",
            "--output-file",
            str(report),
            "--",
            checks,
        ]

    def verdict(self, text: str) -> Verdict:
        return verdicts.from_check50(text, len(claims_and_functions()))

    def environment(self) -> dict[str, str]:
        return super().environment() | {"CHECK50_WORKERS": str(self.jobs)}
